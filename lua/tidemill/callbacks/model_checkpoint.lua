--- tm.callbacks.ModelCheckpoint: the model on disk, each epoch or each so many batches.
---
--- What is written is model and optimizer: a directory that tm.models.load reads, or with
--- save_weights_only a checkpoint of the two.  It becomes the latest of its directory.
---
--- Invariants
---   (1) The best value is written down, beside the checkpoints, only after the checkpoint
---       that has it; it counts in a later fit as long as that checkpoint is there.
---   (2) A save that fails ends the fit.

local Callback = require "tidemill.callbacks.callback"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local format = require "tidemill.callbacks.path_format"
local monitor = require "tidemill.callbacks.monitor"
local options = require "tidemill.lib.options"
local state = require "tidemill.train.state"
local tm = require "tidemill.lib.lazy"

---@class tm.callbacks.ModelCheckpoint : tm.callbacks.Callback
---@field best number  of `monitor`, so far
local ModelCheckpoint = Callback:extend("ModelCheckpoint")

local NAME = "ModelCheckpoint"

--- ModelCheckpoint(filepath, { monitor = "val_loss", verbose = 0, save_best_only = false,
--- save_weights_only = false, mode = "auto", save_freq = "epoch" | batches,
--- initial_value_threshold })
function ModelCheckpoint:init(filepath, given)
  filepath, given = Callback.lead("filepath", filepath, given)
  self.filepath = options.path(NAME, "a path", filepath):gsub("(.)/+$", "%1")
  local o = options.read(NAME, given, { "initial_value_threshold", monitor = "val_loss", verbose = 0,
    save_best_only = false, save_weights_only = false, mode = "auto", save_freq = "epoch" })
  if o.save_freq ~= "epoch" then options.count(NAME, 'save_freq (or "epoch")', o.save_freq, 1) end
  if o.initial_value_threshold ~= nil then
    options.number(NAME, "initial_value_threshold", o.initial_value_threshold)
  end
  format.names(NAME, self.filepath)
  self.monitor, self.mode = o.monitor, monitor.direction(NAME, o.monitor, o.mode)
  self.save_best_only = options.flag(NAME, "save_best_only", o.save_best_only)
  self.save_weights_only = options.flag(NAME, "save_weights_only", o.save_weights_only)
  self.save_freq, self.verbose = o.save_freq, monitor.verbose(NAME, o.verbose)
  self.best = o.initial_value_threshold or monitor.worst(self.mode)
end

-- --- what the best was, over a restart ---

--- The file beside the checkpoints: of this path and this number.
local function best_file(self)
  local dir, name = state.split(self.filepath)
  dir = dir:gsub("/?[^/]*{.*$", "") -- a directory that is named by numbers
  name = name:gsub("[^%w_.-]+", "_")
  return state.join(dir == "" and "." or dir, ("%s.%s.best"):format(name, self.monitor:gsub("[^%w_]", "_")))
end

local function remember(self, path)
  local file = best_file(self)
  local f, why = io.open(file .. ".tmp", "wb")
  local ok = f
  if f then
    ok, why = f:write(("%.17g\n%s\n"):format(self.best, path))
    if ok then ok, why = f:flush() end
    f:close()
  end
  if ok then ok, why = os.rename(file .. ".tmp", file) end
  if not ok then
    os.remove(file .. ".tmp")
    errors.raise("unavailable", '%s: "%s" cannot be written: %s', NAME, file, tostring(why))
  end
end

local function recall(self)
  local f = io.open(best_file(self), "rb")
  if not f then return end
  local text = f:read "*a" or ""
  f:close()
  local best, path = text:match "^(%S+)\n([^\n]+)\n$"
  best = tonumber(best)
  if not best or not state.exists(path) then return end
  if monitor.better(self.mode, best, self.best, 0) then
    self.best = best
    core.log("info", ('%s: the best %s so far is %g, of "%s"'):format(NAME, self.monitor, best, path))
  end
end

-- --- saving ---

local function write(self, path)
  local model, saved, err = self.model
  if self.save_weights_only then
    saved, err = tm.train.Checkpoint { model = model, optimizer = model.optimizer }:write(path)
  else
    saved, err = model:save(path)
  end
  if saved then
    local dir, name = state.split(path)
    saved, err = state.change(dir, { add = name, time = os.time() })
  end
  if saved then return end
  err = errors.wrap(err)
  errors.raise(err.code, '%s: "%s" cannot be saved: %s', NAME, path, err.message)
end

local function say(self, ...)
  if self.verbose ~= 0 then monitor.say(...) end
end

local function save_best(self, epoch, logs, path)
  local x = monitor.value(self, logs)
  if x == nil then return end
  if not monitor.better(self.mode, x, self.best, 0) then
    return say(self, "Epoch %d: %s did not improve from %.5f", epoch, self.monitor, self.best)
  end
  say(self, "Epoch %d: %s improved from %.5f to %.5f, saving model to %s", epoch, self.monitor, self.best, x, path)
  write(self, path)
  self.best = x
  remember(self, path)
end

local function save(self, epoch, batch, logs)
  logs = logs or {}
  local numbers = setmetatable({ epoch = epoch, batch = batch }, { __index = logs, __pairs = nil })
  local ok, path = pcall(format.path, NAME, self.filepath, numbers)
  if not ok then -- once more with all names there are, for the message
    local all = { epoch = epoch, batch = batch }
    for k, v in pairs(logs) do all[k] = v end
    path = format.path(NAME, self.filepath, all)
  end
  if self.save_best_only then return save_best(self, epoch, logs, path) end
  say(self, "Epoch %d: saving model to %s", epoch, path)
  write(self, path)
end

-- --- hooks ---

function ModelCheckpoint:on_train_begin()
  self._told, self._epoch, self._seen, self._since = false, nil, 0, 0
  if self.save_best_only then recall(self) end
end

function ModelCheckpoint:on_epoch_begin(epoch)
  if self._epoch ~= epoch then self._epoch, self._seen = epoch, 0 end
end

--- The batch after which it saves next: the loop starts no later one before.
function ModelCheckpoint:_barrier()
  if self.save_freq ~= "epoch" then return self._seen + self.save_freq - self._since end
end

function ModelCheckpoint:_reached(batch, logs)
  self._since = self._since + batch - self._seen
  self._seen = batch
  if self._since < self.save_freq then return end
  self._since = 0
  save(self, self._epoch, batch, logs)
end

function ModelCheckpoint:on_epoch_end(epoch, logs)
  if self.save_freq == "epoch" then save(self, epoch, nil, logs) end
end

function ModelCheckpoint:get_state()
  return { best = self.best, since = self._since, seen = self._seen, epoch = self._epoch }
end

function ModelCheckpoint:set_state(s)
  self._since, self._seen, self._epoch = s.since, s.seen, s.epoch
  if monitor.better(self.mode, s.best, self.best, 0) then self.best = s.best end
end

return ModelCheckpoint
