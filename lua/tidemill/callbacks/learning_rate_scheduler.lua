--- tm.callbacks.LearningRateScheduler: a learning rate an epoch.
---
---     tm.callbacks.LearningRateScheduler(function(epoch, rate) return epoch < 10 and rate or rate * 0.9 end)

local Callback = require "tidemill.callbacks.callback"
local errors = require "tidemill.errors"
local monitor = require "tidemill.callbacks.monitor"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local rate = require "tidemill.callbacks.rate"
local values = require "tidemill.lib.values"

---@class tm.callbacks.LearningRateScheduler : tm.callbacks.Callback
local Scheduler = Callback:extend("LearningRateScheduler")

local NAME = "LearningRateScheduler"

--- LearningRateScheduler(schedule, { verbose = 0 }): schedule(epoch, rate) gives the rate
--- of the epoch; `rate` is the one before.  Epochs count from 1.
function Scheduler:init(schedule, given)
  schedule, given = Callback.lead("schedule", schedule, given)
  self.schedule = options.callable(NAME, "schedule", schedule)
  self.verbose = monitor.verbose(NAME, options.read(NAME, given, { verbose = 0 }).verbose)
end

function Scheduler:on_train_begin() self._epoch = nil end

function Scheduler:on_epoch_begin(epoch)
  if self._epoch == epoch then return end -- a backup in the middle of it is continued
  self._epoch = epoch
  local new = self.schedule(epoch, rate.read(self))
  if values.is_tensor(new) then new = new:item() end
  if type(new) ~= "number" then
    errors.raise("invalid_argument", "%s: the schedule must give a number for epoch %d, got %s", NAME, epoch,
      kinds.a(new))
  end
  rate.write(self, new)
  if self.verbose ~= 0 then
    monitor.say("Epoch %d: LearningRateScheduler setting learning rate to %g.", epoch, new)
  end
end

function Scheduler:on_epoch_end(_, logs)
  if logs then logs.lr = rate.read(self) end
end

function Scheduler:get_state() return { epoch = self._epoch } end

function Scheduler:set_state(s) self._epoch = s.epoch end

return Scheduler
