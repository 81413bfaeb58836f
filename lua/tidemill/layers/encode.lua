--- Ids as vectors: one_hot, multi_hot, count; and walking over what `adapt` is given.

local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

--- Raise unless the mode is in the list.
function M.check(where, mode, modes)
  for _, m in ipairs(modes) do
    if m == mode then return end
  end
  options.unknown(where, "output_mode", mode, modes)
end

--- ids (..., n) as vectors of `depth`: (..., n, depth) for one_hot (a last axis of one is
--- dropped), (..., depth) for multi_hot and count.
function M.apply(ids, depth, mode, weights)
  if mode == "one_hot" then
    if #ids.shape > 1 and ids.shape[#ids.shape] == 1 then ids = tm.squeeze(ids, -1) end
    return tm.one_hot(ids, depth)
  end
  local each = tm.one_hot(ids, depth)
  local axis = #ids.shape == 0 and nil or -2
  if mode == "multi_hot" then return axis and tm.reduce_max(each, axis) or each end
  if weights ~= nil then
    each = each * tm.expand_dims(values.cast(values.tensor(weights, "float32"), "float32"), -1)
  end
  return axis and tm.reduce_sum(each, axis) or each
end

--- fn(tensor) for each element of a dataset, or once for a tensor or a list.
function M.each(where, data, dtype, fn)
  if type(data) == "table" and getmetatable(data) == nil then data = tm.tensor(data, dtype) end
  if values.is_tensor(data) then return fn(data) end
  if type(data) ~= "table" or type(data.each) ~= "function" then
    errors.raise("invalid_argument", "%s: adapt takes a dataset, a tensor or a list", where)
  end
  if data:cardinality() == "infinite" then
    errors.raise("invalid_argument", "%s: adapt cannot end on an infinite dataset; use take(n)", where)
  end
  for element in data:each() do
    local flat = nest.flatten(element)
    if #flat ~= 1 then
      errors.raise("invalid_argument", "%s: adapt takes a dataset of single tensors, not of %d; use map", where,
        #flat)
    end
    fn(flat[1])
  end
end

return M
