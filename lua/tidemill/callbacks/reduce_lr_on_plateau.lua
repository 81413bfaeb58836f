--- tm.callbacks.ReduceLROnPlateau: a smaller learning rate where a number gets no better.

local Callback = require "tidemill.callbacks.callback"
local errors = require "tidemill.errors"
local monitor = require "tidemill.callbacks.monitor"
local options = require "tidemill.lib.options"
local rate = require "tidemill.callbacks.rate"

---@class tm.callbacks.ReduceLROnPlateau : tm.callbacks.Callback
local Reduce = Callback:extend("ReduceLROnPlateau")

local NAME = "ReduceLROnPlateau"

--- ReduceLROnPlateau{ monitor = "val_loss", factor = 0.1, patience = 10, verbose = 0,
--- mode = "auto", min_delta = 1e-4, cooldown = 0, min_lr = 0 }
function Reduce:init(given)
  local o = options.read(NAME, given, { monitor = "val_loss", factor = 0.1, patience = 10, verbose = 0, mode = "auto",
    min_delta = 1e-4, cooldown = 0, min_lr = 0 })
  options.number(NAME, "factor", o.factor, 0)
  if o.factor >= 1 then errors.raise("invalid_argument", "%s: factor is below 1, got %g", NAME, o.factor) end
  options.count(NAME, "patience", o.patience, 0)
  options.count(NAME, "cooldown", o.cooldown, 0)
  options.number(NAME, "min_delta", o.min_delta)
  options.number(NAME, "min_lr", o.min_lr, 0)
  self.monitor, self.mode = o.monitor, monitor.direction(NAME, o.monitor, o.mode)
  self.factor, self.patience, self.verbose = o.factor, o.patience, monitor.verbose(NAME, o.verbose)
  self.min_delta, self.cooldown, self.min_lr = o.min_delta, o.cooldown, o.min_lr
  self:_begin()
end

function Reduce:_begin()
  self.wait, self.cooldown_counter, self.best, self._told = 0, 0, monitor.worst(self.mode), false
end

function Reduce:on_train_begin() self:_begin() end

local function lower(self, epoch)
  local old = rate.read(self)
  if old <= self.min_lr then return end
  local new = math.max(old * self.factor, self.min_lr)
  rate.write(self, new)
  if self.verbose ~= 0 then
    monitor.say("Epoch %d: ReduceLROnPlateau reducing learning rate to %g.", epoch, new)
  end
  self.cooldown_counter, self.wait = self.cooldown, 0
end

function Reduce:on_epoch_end(epoch, logs)
  if logs then logs.lr = rate.read(self) end
  local x = monitor.value(self, logs)
  if x == nil then return end
  if self.cooldown_counter > 0 then self.cooldown_counter, self.wait = self.cooldown_counter - 1, 0 end
  if monitor.better(self.mode, x, self.best, self.min_delta) then
    self.best, self.wait = x, 0
  elseif self.cooldown_counter == 0 then
    self.wait = self.wait + 1
    if self.wait >= self.patience then lower(self, epoch) end
  end
end

function Reduce:get_state()
  return { wait = self.wait, cooldown_counter = self.cooldown_counter, best = self.best }
end

function Reduce:set_state(s) self.wait, self.cooldown_counter, self.best = s.wait, s.cooldown_counter, s.best end

return Reduce
