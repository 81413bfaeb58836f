--- tm.callbacks.EarlyStopping: end a fit whose number gets no better.

local Callback = require "tidemill.callbacks.callback"
local monitor = require "tidemill.callbacks.monitor"
local options = require "tidemill.lib.options"

---@class tm.callbacks.EarlyStopping : tm.callbacks.Callback
---@field best number           the best value so far
---@field best_epoch integer    its epoch, 0 before there is one
---@field stopped_epoch integer the epoch that ended the fit, 0 while it goes on
---@field wait integer          epochs since the last improvement
local EarlyStopping = Callback:extend("EarlyStopping")

local NAME = "EarlyStopping"

--- EarlyStopping{ monitor = "val_loss", min_delta = 0, patience = 0, verbose = 0,
--- mode = "auto", baseline, restore_best_weights = false, start_from_epoch = 0 }
function EarlyStopping:init(given)
  local o = options.read(NAME, given, { "baseline", monitor = "val_loss", min_delta = 0, patience = 0, verbose = 0,
    mode = "auto", restore_best_weights = false, start_from_epoch = 0 })
  options.number(NAME, "min_delta", o.min_delta)
  options.count(NAME, "patience", o.patience, 0)
  options.count(NAME, "start_from_epoch", o.start_from_epoch, 0)
  options.flag(NAME, "restore_best_weights", o.restore_best_weights)
  if o.baseline ~= nil then options.number(NAME, "baseline", o.baseline) end
  self.monitor, self.mode = o.monitor, monitor.direction(NAME, o.monitor, o.mode)
  self.min_delta, self.patience, self.verbose = math.abs(o.min_delta), o.patience, monitor.verbose(NAME, o.verbose)
  self.baseline, self.restore_best_weights = o.baseline, o.restore_best_weights
  self.start_from_epoch = o.start_from_epoch
  self:_begin()
end

function EarlyStopping:_begin()
  self.wait, self.stopped_epoch, self.best_epoch = 0, 0, 0
  self.best, self.best_weights, self._told = monitor.worst(self.mode), nil, false
end

function EarlyStopping:on_train_begin() self:_begin() end

local function keep(self, epoch)
  self.best_epoch = epoch
  if self.restore_best_weights then self.best_weights = self.model:get_weights() end
end

function EarlyStopping:on_epoch_end(epoch, logs)
  local x = monitor.value(self, logs)
  if x == nil or epoch <= self.start_from_epoch then return end
  if self.restore_best_weights and not self.best_weights then keep(self, epoch) end
  self.wait = self.wait + 1
  if monitor.better(self.mode, x, self.best, self.min_delta) then
    self.best = x
    keep(self, epoch)
    if not self.baseline or monitor.better(self.mode, x, self.baseline, self.min_delta) then self.wait = 0 end
    return
  end
  if self.wait >= self.patience and epoch > 1 then
    self.stopped_epoch = epoch
    self.model.stop_training = true
  end
end

--- The best weights come back at every end of a fit, not only at an early one.
function EarlyStopping:on_train_end()
  local loud = self.verbose ~= 0
  if self.stopped_epoch > 0 and loud then monitor.say("Epoch %d: early stopping", self.stopped_epoch) end
  if not self.best_weights then return end
  if loud then monitor.say("Restoring model weights from the end of the best epoch: %d.", self.best_epoch) end
  self.model:set_weights(self.best_weights)
end

function EarlyStopping:get_state()
  return { wait = self.wait, best = self.best, best_epoch = self.best_epoch, weights = self.best_weights }
end

function EarlyStopping:set_state(s)
  self.wait, self.best, self.best_epoch, self.best_weights = s.wait, s.best, s.best_epoch, s.weights
end

return EarlyStopping
