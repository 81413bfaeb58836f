--- tm.callbacks.TerminateOnNaN: end a fit whose loss is no number any more.

local Callback = require "tidemill.callbacks.callback"
local monitor = require "tidemill.callbacks.monitor"

---@class tm.callbacks.TerminateOnNaN : tm.callbacks.Callback
local Terminate = Callback:extend("TerminateOnNaN")

function Terminate:on_train_batch_end(batch, logs)
  if self.model.stop_training then return end -- batches that were started before are told too
  local loss = logs and logs.loss
  if loss and (loss ~= loss or loss == math.huge or loss == -math.huge) then
    monitor.say("Batch %d: Invalid loss, terminating training", batch)
    self.model.stop_training = true
  end
end

return Terminate
