--- What kind of thing a value is, and small questions about shapes.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local variable = require "tidemill.variable"
local tm = require "tidemill.lib.lazy"

local M = {}

local function mark(x, field)
  local mt = getmetatable(x)
  return type(mt) == "table" and rawget(mt, field) or nil
end

--- A tensor, eager or of a trace.
M.is_tensor = core.is_tensor

--- A variable, sharded or not.
M.is_variable = variable.is

--- A tm.Input or what was computed from one.
function M.is_symbol(x) return type(x) == "table" and mark(x, "__tm_symbol") == true end

--- An iterator of this process or on the workers: it has a state and can go there.
function M.is_iterator(x)
  return type(x) == "table" and (mark(x, "__tm_iterator") or mark(x, "__tm_per_worker")) == true
end

--- A metric: metrics say so themselves, this module must not load them.
function M.is_metric(x) return type(x) == "table" and getmetatable(x) ~= nil and x.is_metric == true end

local function is_plain(x)
  local t = type(x)
  return t == "number" or t == "string" or t == "boolean"
end

local function all_plain(x)
  if not nest.is_nested(x) then return is_plain(x) end
  for _, v in pairs(x) do
    if not all_plain(v) then return false end
  end
  return true
end

--- What a layer is called with: numbers, strings and lists of them become tensors, in a
--- structure too.
function M.input(x, dtype)
  if is_plain(x) then return tm.tensor(x, type(x) == "number" and dtype or nil) end
  if not nest.is_nested(x) then return x end
  if x[1] ~= nil and all_plain(x) then
    local leaf = x
    while type(leaf) == "table" do leaf = leaf[1] end
    return tm.tensor(x, type(leaf) == "number" and dtype or nil)
  end
  local out = {}
  for _, k in ipairs(nest.keys(x)) do out[k] = M.input(x[k], dtype) end
  return out
end

--- The shape that `build` is given: the first size, the batch, is unknown.
function M.shape_of_input(x)
  local shape = {}
  for i, n in ipairs(x.shape) do shape[i] = i == 1 and -1 or n end
  return shape
end

--- A type as the leaf of a structure, as tidemill.func has them.
function M.spec(shape, dtype) return require("tidemill.func").placeholder { shape = shape, dtype = dtype } end

--- Is there a leaf of a structure for which test(leaf) holds?
function M.any(test, x)
  if not nest.is_nested(x) then return test(x) and true or false end
  for _, v in pairs(x) do
    if M.any(test, v) then return true end
  end
  return false
end

--- Elements of a known shape.
function M.count(shape)
  local n = 1
  for _, d in ipairs(shape) do n = n * d end
  return n
end

--- Is the dtype one of integers?
function M.is_integer(dtype) return dtype:match "int" ~= nil end

function M.is_float(dtype) return dtype:match "float" ~= nil end

--- x as this dtype, itself when it is that already.
function M.cast(x, dtype)
  if x.dtype == dtype then return x end
  return tm.cast(x, dtype)
end

--- A value as a tensor; numbers and lists take the dtype.
function M.tensor(x, dtype)
  if M.is_tensor(x) then return x end
  if M.is_variable(x) then return x:read() end
  if x == nil then
    errors.raise("invalid_argument", "a value is missing: losses and metrics take (y_true, y_pred)")
  end
  return tm.tensor(x, dtype)
end

return M
