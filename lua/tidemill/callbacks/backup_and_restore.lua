--- tm.callbacks.BackupAndRestore: a fit that is killed goes on where its last backup was,
--- when the same script runs again.
---
--- A backup is a checkpoint of all that a fit is made of: model, optimizer, metrics,
--- random state, epoch and batch, the place in the data, what callbacks remember.
---
--- Invariants
---   (1) Between two batches nothing is started when a backup is made: its weights, its
---       metrics and its place in the data agree.
---   (2) The new backup is whole on disk before the old one is deleted.
---   (3) It is the last to be called at each hook, so that it has what the others made of
---       it; a fit that ends well leaves no backup.

local Callback = require "tidemill.callbacks.callback"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local state = require "tidemill.train.state"
local steps = require "tidemill.fit.steps"
local tree = require "tidemill.train.tree"
local tm = require "tidemill.lib.lazy"

local unpack = table.unpack or unpack

---@class tm.callbacks.BackupAndRestore : tm.callbacks.Callback
local Backup = Callback:extend("BackupAndRestore")

Backup._last = true

local NAME = "BackupAndRestore"

--- BackupAndRestore(backup_dir, { save_freq = "epoch" | batches | false,
--- delete_checkpoint = true, save_before_preemption = false })
function Backup:init(dir, given)
  dir, given = Callback.lead("backup_dir", dir, given)
  self.backup_dir = options.path(NAME, "a directory", dir):gsub("(.)/+$", "%1")
  local o = options.read(NAME, given, { save_freq = "epoch", delete_checkpoint = true, save_before_preemption = false })
  if o.save_freq and o.save_freq ~= "epoch" then options.count(NAME, 'save_freq (or "epoch")', o.save_freq, 1) end
  options.flag(NAME, "save_before_preemption", o.save_before_preemption)
  if not o.save_freq and not o.save_before_preemption then
    errors.raise("invalid_argument", "%s: save_freq = false needs save_before_preemption = true: it would never save",
      NAME)
  end
  self.save_freq, self.save_before_preemption = o.save_freq, o.save_before_preemption
  self.delete_checkpoint = options.flag(NAME, "delete_checkpoint", o.delete_checkpoint)
end

local function fitting_of(self)
  return self.model.fitting or errors.raise("failed_precondition", "%s works in a fit only", NAME)
end

-- --- reading a backup ---

local function must(x, err)
  if x == nil then error(err, 0) end
  return x
end

local function put(root, name, x)
  local keys = {}
  for part in name:gmatch "[^/]+" do keys[#keys + 1] = tree.key_of(part) end
  local t = root
  for i = 1, #keys - 1 do
    t[keys[i]] = t[keys[i]] or {}
    t = t[keys[i]]
  end
  t[keys[#keys]] = x
end

--- The plain values and tensors of a checkpoint's table `state`.
local function read_state(path)
  local reader, root = must(core.ckpt.open(path)), {}
  local function of_state(name) return name:match "^state/(.*)$" end
  for _, v in ipairs(reader:values()) do
    if of_state(v.name) then put(root, of_state(v.name), v.value) end
  end
  for _, t in ipairs(reader:tensors()) do
    if of_state(t.name) then put(root, of_state(t.name), must(reader:read(t.name))) end
  end
  reader:close()
  return root
end

--- Trace the step, so that the model and its metrics have their variables.
local function build(self)
  local fitting, model = fitting_of(self), self.model
  local ds = fitting.source.dataset
  local iterator = setmetatable({ _dataset = ds, element_spec = ds.element_spec }, { __tm_iterator = true })
  local function trace() steps.of(model, "train").fn:_concrete { iterator } end
  local ok, err = pcall(function()
    if model._scope and model._scope.scope then model._scope:scope(trace) else trace() end
  end)
  if not ok then core.log("info", ("%s: the step cannot be traced before it runs: %s"):format(NAME, tostring(err))) end
end

local function restore(self, path)
  build(self)
  local saved = read_state(path)
  self._checkpoint.metrics, self._checkpoint.state = self.model.metrics, saved
  must(self._checkpoint:restore(path))
  local fitting = fitting_of(self)
  fitting:resume(saved.fit, saved.logs)
  fitting.list:set_states(saved.callbacks or {})
  if saved.rate then self.model.optimizer.learning_rate = saved.rate end -- as it was set, not as float32
  if saved.random then core.ckpt.set_random_state(unpack(saved.random)) end -- what validation drew, it draws again
  if saved.stop then self.model.stop_training = true end
end

--- Go on from the backup, where there is one.
function Backup:on_train_begin()
  self._epoch, self._seen, self._since = nil, 0, 0
  self._checkpoint = tm.train.Checkpoint { model = self.model, optimizer = self.model.optimizer, random = tm.random,
    state = {} }
  self._manager = tm.train.CheckpointManager(self._checkpoint, self.backup_dir, { max_to_keep = 1,
    checkpoint_name = "backup" })
  local path = self._manager.latest_checkpoint
  if path then
    local ok, err = pcall(restore, self, path)
    if not ok then
      err = errors.wrap(err)
      errors.raise(err.code, '%s: the backup "%s" does not fit: %s; delete it to begin anew', NAME, path, err.message)
    end
    local f = fitting_of(self)
    core.log("info", ('%s: going on from "%s": epoch %d, %d steps of it done'):format(NAME, path, f.epoch, f.begun))
  end
  if self.save_before_preemption then self:_watch() end
end

-- --- saving ---

local function save(self)
  local fitting, c = fitting_of(self), self._checkpoint
  local where = fitting:state()
  c.metrics = self.model.metrics
  local rate = self.model.optimizer and self.model.optimizer.learning_rate
  c.state = { fit = where, callbacks = fitting.list:states(), stop = self.model.stop_training == true,
    rate = type(rate) == "number" and rate or nil }
  if fitting.trained then -- validation sets metrics back: what training made of them
    c.state.logs, c.state.random = {}, fitting.trained.random
    for k, v in pairs(fitting.trained.logs) do c.state.logs[k] = v end
  end
  local path, err = self._manager:save()
  if path then return path end
  err = errors.wrap(err)
  errors.raise(err.code, '%s: no backup in "%s": %s', NAME, self.backup_dir, err.message)
end

function Backup:on_epoch_begin(epoch)
  if self._epoch ~= epoch then self._epoch, self._seen = epoch, 0 end
end

--- The batch after which it saves next: the loop starts no later one before.
function Backup:_barrier()
  if type(self.save_freq) == "number" then return self._seen + self.save_freq - self._since end
end

function Backup:_reached(batch)
  self._since = self._since + batch - self._seen
  self._seen = batch
  if self._since < self.save_freq then return end
  self._since = 0
  save(self)
end

function Backup:on_epoch_end()
  if self.save_freq == "epoch" then save(self) end
  self:_heed()
end

--- Batches since the last backup; one that is being made counts them itself.
function Backup:get_state() return { since = self._since, seen = self._seen, epoch = self._epoch } end

function Backup:set_state(s) self._since, self._seen, self._epoch = s.since, s.seen, s.epoch end

-- --- preemption ---

function Backup:_watch()
  self._watcher = tm.distribute.PreemptionWatcher()
  self._watcher:on_message(function(text, task) self._urgent = { text = text, task = task } end)
end

--- Somebody is leaving: save now; if it is this process, end.
function Backup:_heed()
  local m = self._urgent
  if not m then return end
  self._urgent = nil
  local path = save(self)
  core.log("warn", ('%s: %s: saved "%s"'):format(NAME, m.text, path))
  if m.task ~= require("tidemill.distribute.preemption").task() then return end
  fitting_of(self).list:close()
  io.stdout:flush()
  os.exit(143, true)
end

-- --- the end ---

--- A fit that came to its end needs no backup; one that Ctrl-C ended goes on from it.
function Backup:on_train_end()
  if not self.delete_checkpoint or fitting_of(self).interrupted then return end
  for _, path in ipairs(self._manager.checkpoints) do
    local ok, err = core.ckpt.remove(path)
    if not ok then core.log("warn", ("%s: %s"):format(NAME, tostring(err))) end
  end
  os.remove(state.join(self.backup_dir, "checkpoint"))
  os.remove(self.backup_dir) -- if nothing else is in it
end

function Backup:_release()
  if self._watcher then self._watcher:close() end
  self._watcher, self._urgent = nil, nil
end

return Backup
