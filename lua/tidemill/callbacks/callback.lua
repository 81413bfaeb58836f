--- tm.callbacks.Callback: what fit, evaluate and predict call on their way.
---
---     local Timer = tm.callbacks.Callback:extend("Timer")
---     function Timer:on_epoch_begin(epoch) self.begun = tm.time() end
---     function Timer:on_epoch_end(epoch, logs) print(epoch, logs.loss, tm.time() - self.begun) end
---     model:fit(x, { y = y, callbacks = { Timer() } })
---
--- `self.model` is the model, `self.params` has epochs, steps and verbose.  Epochs and
--- batches count from 1.  A hook that a class does not define costs nothing: batch hooks
--- are called only where some callback has them.

local class = require "tidemill.lib.class"

---@class tm.callbacks.Callback
---@field model tm.Model
---@field params table
local Callback = class.new("Callback")

--- Every hook, in the order in which a fit meets them.
Callback.hooks = {
  "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end", "on_train_end",
  "on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end",
  "on_predict_begin", "on_predict_batch_begin", "on_predict_batch_end", "on_predict_end",
  "on_progress", -- (kind, steps done, logs), now and then: at most ten times a second
  "on_batch_begin", "on_batch_end", -- where a callback lacks those of train
}

for _, hook in ipairs(Callback.hooks) do Callback[hook] = function() end end

--- Does a callback (of a class, or a plain table) do something at a hook?
---@return function?
function Callback.hook_of(cb, hook)
  local fn = cb[hook]
  if fn ~= nil and fn ~= Callback[hook] then return fn end
end

--- The first argument of a constructor and the table after it; all may stand in one
--- table: CSVLogger(path, { append = true }), CSVLogger{ filename = path, append = true }.
function Callback.lead(name, first, given)
  if type(first) ~= "table" or getmetatable(first) ~= nil or given ~= nil then return first, given end
  given = {}
  for k, v in pairs(first) do given[k] = v end
  first, given[name] = given[name], nil
  return first, given
end

function Callback:set_model(model) self.model = model end

function Callback:set_params(params) self.params = params end

return Callback
