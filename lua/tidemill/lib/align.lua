--- Shapes of targets, predictions and weights brought together as Keras does it: a
--- trailing axis of size one more or less makes no difference.

local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local function last_is_one(x)
  local n = x.shape[#x.shape]
  return n == 1 or n == -1
end

--- Drop a trailing axis of one from whichever has it more.
function M.pair(y_true, y_pred)
  local difference = #y_pred.shape - #y_true.shape
  if difference == 1 and last_is_one(y_pred) then
    y_pred = tm.squeeze(y_pred, -1)
  elseif difference == -1 and last_is_one(y_true) then
    y_true = tm.squeeze(y_true, -1)
  end
  return y_true, y_pred
end

--- Weights that broadcast against x.
function M.weights(weights, x)
  weights = values.cast(values.tensor(weights, x.dtype), x.dtype)
  local difference = #weights.shape - #x.shape
  if difference == 1 and last_is_one(weights) then return tm.squeeze(weights, -1) end
  if difference == -1 and #weights.shape > 0 then return tm.expand_dims(weights, -1) end
  return weights
end

--- Class ids without a trailing axis of one, as int64.
function M.class_ids(y_true, y_pred)
  if #y_true.shape == #y_pred.shape and last_is_one(y_true) then y_true = tm.squeeze(y_true, -1) end
  return values.cast(y_true, "int64")
end

return M
