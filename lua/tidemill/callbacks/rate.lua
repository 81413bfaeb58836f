--- Reading and setting the learning rate of a callback's model.

local errors = require "tidemill.errors"

local M = {}

local function optimizer_of(cb)
  local o = cb.model and cb.model.optimizer
  if not o then errors.raise("failed_precondition", "%s: the model has no optimizer; compile it", cb.class_name) end
  return o
end

--- The learning rate, a number; a schedule cannot be changed from outside.
function M.read(cb)
  local rate = optimizer_of(cb).learning_rate
  if type(rate) ~= "number" then
    errors.raise("failed_precondition",
      "%s: the optimizer's learning rate is a schedule; give the optimizer a number", cb.class_name)
  end
  return rate
end

--- Set it; workers see it at their next step.
function M.write(cb, rate) optimizer_of(cb).learning_rate = rate end

return M
