--- The outputs of a model: their names, and structures laid beside them.
---
---     local outs = outputs.of(model, y_pred)
---     outs.names                          -- { "height", "kind" }
---     outs:pick("loss", { kind = "mse" }) -- { nil, "mse" }: one entry an output
---
--- Outputs in a table have keys besides: the names of logs come from layers, what goes
--- with an output is found by its key, or else by its name.

local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"

local M = {}

---@class tm.fit.Outputs
---@field n integer
---@field names string[]
local Outputs = {}
Outputs.__index = Outputs

--- Names of paths: output_1, output_2 in a list, the key in a table.
local function names_by_path(x)
  local names = {}
  local function walk(v, path)
    if not nest.is_nested(v) then
      names[#names + 1] = path or "output_1"
      return
    end
    for _, k in ipairs(nest.keys(v)) do
      local name = path and path .. "_" .. k or (type(k) == "number" and "output_" .. k or k)
      walk(v[k], name)
    end
  end
  walk(x, nil)
  return names
end

--- Names of the layers that made the outputs of a functional model, each once.
local function names_by_layer(symbols)
  local names, taken = {}, {}
  for i, s in ipairs(symbols) do
    local base, n = s.name or "output_" .. i, 0
    names[i] = base
    while taken[names[i]] do
      n = n + 1
      names[i] = base .. "_" .. n
    end
    taken[names[i]] = true
  end
  return names
end

--- Outputs of a model that gave y_pred.
function M.of(model, y_pred)
  local declared = rawget(model, "outputs")
  local keys = names_by_path(y_pred)
  local names = declared ~= nil and names_by_layer(nest.flatten(declared)) or keys
  return setmetatable({ names = names, keys = nest.is_nested(y_pred) and keys or names, n = #names }, Outputs)
end

local function is_named(x) return nest.is_nested(x) and x[1] == nil and next(x) ~= nil end

local function by_name(self, what, x)
  local out, left = {}, {}
  for k in pairs(x) do left[k] = true end
  for i, name in ipairs(self.names) do
    local key = self.keys[i]
    if x[key] == nil then key = name end
    out[i], left[key] = x[key], nil
  end
  local other = next(left)
  if other ~= nil then options.unknown(what, "output", other, self.keys) end
  return out
end

--- { p = { a }, q = { r = b } } as { p_1 = a, q_r = b }: by the names of paths.
local function flat(x)
  for _, v in pairs(x) do
    if nest.is_nested(v) then
      local names, out = names_by_path(x), {}
      for i, leaf in ipairs(nest.flatten(x)) do out[names[i]] = leaf end
      return out
    end
  end
  return x
end

--- Entries of a structure by output: a table by names, a list by positions, or one thing
--- for all.  `lists`: an entry may itself be a list.
function Outputs:pick(what, x, lists)
  local out = {}
  if x == nil then return out end
  if is_named(x) then return by_name(self, what, lists and x or flat(x)) end
  if not nest.is_nested(x) then
    for i = 1, self.n do out[i] = x end
    return out
  end
  local list = lists and x or nest.flatten(x)
  local n = 0
  for k in pairs(list) do n = math.max(n, type(k) == "number" and k or 0) end
  if n > self.n or (n < self.n and not lists) then
    errors.raise("invalid_argument", "%s: %d entries for %d output%s (%s)", what, n, self.n,
      self.n == 1 and "" or "s", table.concat(self.keys, ", "))
  end
  for i = 1, self.n do out[i] = list[i] end
  return out
end

return M
