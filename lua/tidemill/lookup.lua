--- tm.lookup: tables from keys to values.
---
--- A table is a few constants (core/graph/ops_lookup.c): they travel inside the functions
--- that use it, so a lookup is local to whoever runs it, wherever the table was made.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

---@class tm.lookup.StaticHashTable
local Table = { __name = "tm.lookup.StaticHashTable" }
Table.__index = Table

local NAME = "StaticHashTable"

local function bad(format, ...) errors.raise("invalid_argument", NAME .. ": " .. format, ...) end

local function list_of(x, what)
  if values.is_tensor(x) then
    if x.rank ~= 1 then bad("%s is a list, got a tensor with %d axes", what, x.rank) end
    return x
  end
  if type(x) ~= "table" or getmetatable(x) ~= nil then bad("%s is a list or a tensor, got %s", what, type(x)) end
  return x
end

--- Lines "key<TAB>value", or a word a line whose value is its number from 0.
local function read_file(path)
  if type(path) ~= "string" then bad("file is a path, got %s", type(path)) end
  local f, why = io.open(path, "r")
  if not f then errors.raise("not_found", "%s: %s", NAME, why) end
  local keys, vals, tabs, n = {}, {}, nil, 0
  for line in f:lines() do
    line, n = line:gsub("\r$", ""), n + 1
    local k, v = line:match "^([^\t]*)\t(.*)$"
    if tabs == nil then tabs = k ~= nil end
    if tabs ~= (k ~= nil) then
      f:close()
      bad("%s, line %d: either all lines have a tab or none", path, n)
    end
    keys[n], vals[n] = k or line, v or n - 1
  end
  f:close()
  if tabs then
    local numbers = {}
    for i, v in ipairs(vals) do
      numbers[i] = tonumber(v)
      if not numbers[i] then return keys, vals end
    end
    vals = numbers
  end
  return keys, vals
end

local function whole(list)
  for _, v in ipairs(list) do
    if type(v) ~= "number" or v ~= math.floor(v) then return false end
  end
  return true
end

--- Keys are strings or whole numbers.
local function keys_of(x)
  if values.is_tensor(x) then return x.dtype == "string" and x or tm.cast(x, "int64") end
  if x[1] == nil then return tm.tensor({ "" }):slice { { 2 } } end
  return tm.tensor(x, type(x[1]) == "number" and "int64" or "string")
end

local function values_of(x)
  if values.is_tensor(x) then return x end
  if x[1] == nil then return tm.zeros({ 0 }, "int64") end
  return tm.tensor(x, whole(x) and "int64" or nil)
end

--- StaticHashTable{ keys, values | file, default }
---@return tm.lookup.StaticHashTable
function M.StaticHashTable(given)
  local o = options.read(NAME, given, { "keys", "values", "file", "default" })
  local keys, vals = o.keys, o.values
  if o.file ~= nil then
    if keys ~= nil or vals ~= nil then bad("give keys and values, or file") end
    keys, vals = read_file(o.file)
  end
  if o.default == nil then bad("default, the value of other keys, is missing") end
  keys, vals = list_of(keys, "keys"), list_of(vals, "values")
  return core.eagerly(function()
    local k, v = keys_of(keys), values_of(vals)
    if k.shape[1] ~= v.shape[1] then bad("%d keys and %d values", k.shape[1], v.shape[1]) end
    local default = tm.tensor(o.default, v.dtype)
    if default.rank ~= 0 then bad("default is one value") end
    local slots, at = core.ops.lookup_table(k, tm.range(k.shape[1]))
    return setmetatable({
      _keys = slots, _at = at, _size = k.shape[1], key_dtype = k.dtype, value_dtype = v.dtype,
      -- The last one is for keys that are not there.
      _values = tm.concat({ v, tm.reshape(default, { 1 }) }, 1),
    }, Table)
  end)
end

--- The value of each key; the default for those that are not in the table.
function Table:lookup(keys)
  local x = core.as_value(keys, self.key_dtype)
  if x.dtype ~= self.key_dtype and self.key_dtype == "int64" and x.dtype:find "int" then x = tm.cast(x, "int64") end
  if x.dtype ~= self.key_dtype then bad("keys are %s, not %s", self.key_dtype, x.dtype) end
  local at = core.ops.lookup(x, { keys = self._keys, values = self._at, num_oov = 1, oov_first = self._size,
    strict = false })
  return tm.gather(self._values, at)
end

--- How many keys it has.
function Table:size() return self._size end

function Table:__tostring()
  return ("tm.lookup.StaticHashTable(%d keys, %s to %s)"):format(self._size, self.key_dtype, self.value_dtype)
end

return M
