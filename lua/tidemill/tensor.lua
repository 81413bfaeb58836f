--- tm.tensor and what makes tensors; operators of the Tensor userdata.

local core = require "tidemill.core"
local errors = require "tidemill.errors"

local ops = core.ops
local M = {}

local mt = core.Tensor

for _, name in ipairs { "add", "sub", "mul", "div", "mod", "pow" } do
  local op = ops[name]
  mt["__" .. name] = function(a, b) return op(a, b) end
end
function mt.__unm(a) return ops.neg(a) end
function mt.__idiv(a, b) return ops.floordiv(a, b) end

--- tensor(value, dtype): a number, boolean, string, nested list, or a list of tensors.
---@param value any
---@param dtype? string  default: float32 for numbers
---@return tm.Tensor
function M.tensor(value, dtype)
  if value == nil then errors.raise("invalid_argument", "tm.tensor: the value is missing") end
  local t = core.tensor(value, dtype)
  if dtype and t.dtype ~= dtype then return ops.cast(t, dtype) end
  return t
end

--- A list with tensors in it: stacked on a new first axis.
function core.hooks.stack(list, dtype)
  local parts = {}
  for i = 1, #list do parts[i] = core.as_value(list[i], dtype ~= "" and dtype or nil) end
  return ops.stack(parts)
end

M.zeros, M.ones = ops.zeros, ops.ones

--- fill(shape, value, dtype)
function M.fill(shape, value, dtype)
  if type(value) == "boolean" or type(value) == "string" then
    return ops.broadcast_to(M.tensor(value, dtype), shape)
  end
  return ops.fill(shape, value, dtype or "float32")
end

--- range(start, stop, step, dtype): stop excluded; one number: from 0.
function M.range(start, stop, step, dtype)
  if type(stop) == "string" then stop, dtype = nil, stop end
  if type(step) == "string" then step, dtype = nil, step end
  return ops.range(start, stop, step, dtype)
end

--- Is |a - b| <= atol + rtol * |b| everywhere?  A Lua boolean; in a traced
--- function a bool scalar.
function M.allclose(a, b, rtol, atol)
  a, b = core.as_value(a), core.as_value(b)
  if not a.dtype:find "float" then a = ops.cast(a, "float64") end
  if b.dtype ~= a.dtype then b = ops.cast(b, a.dtype) end
  local limit = ops.add(ops.mul(ops.abs(b), rtol or 1e-5), atol or 1e-8)
  local close = ops.logical_or(ops.less_equal(ops.abs(ops.sub(a, b)), limit), ops.equal(a, b))
  close = ops.reduce_all(close)
  return close.symbolic and close or close:item()
end

M.is_tensor = core.is_tensor

return M
