--- tm.distribute.SidecarEvaluator: evaluates the checkpoints of a training, in a process
--- of its own.
---
---     local evaluator = tm.distribute.SidecarEvaluator{ model = model, data = data,
---       checkpoint_dir = "runs/ckpt", max_evaluations = 20 }
---     evaluator:start()
---
--- The directory is one of a CheckpointManager whose Checkpoint has `model` and
--- `optimizer`, or of ModelCheckpoint.  Each evaluation is written as TensorBoard events
--- to `validation` in log_dir (default: checkpoint_dir), at the step that optimizer's
--- `iterations` says.
---
--- Invariants
---   (1) A checkpoint that vanishes while it is read or evaluated is let go, and the next
---       one taken; all other errors end start().
---   (2) An evaluator whose claim was taken over writes nothing down.

local kinds = require "tidemill.lib.kinds"
local checkpoint = require "tidemill.train.checkpoint"
local claims = require "tidemill.distribute.claims"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local resolvers = require "tidemill.distribute.resolvers"
local state = require "tidemill.train.state"
local tm = require "tidemill.lib.lazy"

local NAME = "SidecarEvaluator"

local POLL = 0.25 -- seconds between two looks at the directory
local PATIENCE = 30 -- seconds until it is said that there is nothing

---@class tm.distribute.SidecarEvaluator
---@field latest string?  the checkpoint that is evaluated, or was last
local Sidecar = { __name = "tm.SidecarEvaluator" }
Sidecar.__index = Sidecar

local function bad(fmt, ...) errors.raise("invalid_argument", NAME .. ": " .. fmt, ...) end

local function log(level, fmt, ...) core.log(level, NAME .. ": " .. fmt:format(...)) end

-- --- making ---

--- How the work is shared: a group of evaluators, or nobody to share with.
local function sharing(self, shared)
  local group, launched = resolvers.evaluators()
  if type(shared) == "string" then group = shared end
  if shared == true then group = group or "shared" end
  if shared == false then group = nil end
  if not group then return claims.alone() end
  local c = claims.new(self.checkpoint_dir, (group:gsub("[^%w_-]", "_")), self.claim_timeout)
  if launched then c:sweep "launch-" end
  return c
end

local function check(o)
  if type(o.model) ~= "table" or type(o.model.evaluate) ~= "function" then bad("model is a tm.Model") end
  if o.data == nil then bad("data is missing: what evaluate takes, a dataset for instance") end
  options.path(NAME, "a directory as checkpoint_dir", o.checkpoint_dir)
  if o.steps ~= nil then options.count(NAME, "steps", o.steps, 1) end
  if o.max_evaluations ~= nil then options.count(NAME, "max_evaluations", o.max_evaluations, 0) end
  options.flag(NAME, "every", o.every)
  options.number(NAME, "claim_timeout", o.claim_timeout, 0.001)
  if o.log_dir ~= nil then options.path(NAME, "a directory as log_dir", o.log_dir) end
  if o.shared ~= nil and type(o.shared) ~= "boolean" and type(o.shared) ~= "string" then
    bad("shared is true, false or the name of a group of evaluators, got %s", kinds.a(o.shared))
  end
end

--- SidecarEvaluator{ model, data, checkpoint_dir, steps, max_evaluations, every = false,
--- callbacks, log_dir, shared, claim_timeout = 60, verbose = 2 }
---
--- every: each checkpoint in turn, not only the newest.  shared: several evaluators, each
--- a checkpoint (the default where the environment names several evaluator tasks).
local function new(given)
  local o = options.read(NAME, given, { "model", "data", "checkpoint_dir", "steps", "max_evaluations", "callbacks",
    "log_dir", "shared", every = false, claim_timeout = 60, verbose = 2 })
  check(o)
  local self = setmetatable(o, Sidecar)
  self.checkpoint_dir = o.checkpoint_dir:gsub("(.)/+$", "%1")
  self._claims = sharing(self, o.shared)
  self._finished = {}
  return self
end

-- --- finding ---

--- The number behind the last "-" of a path.
local function number_of(path) return tonumber(path:match "%-(%d+)$") end

--- The paths in question now, oldest first.
local function candidates(self)
  if not self.every then return { state.latest(self.checkpoint_dir) } end
  local list, out = state.read(self.checkpoint_dir), {}
  for _, item in ipairs(list or {}) do
    local path = state.join(self.checkpoint_dir, item.name)
    if state.exists(path) then out[#out + 1] = path end
    local n = self.max_evaluations and number_of(item.name)
    if n and n >= self.max_evaluations then break end
  end
  return out
end

--- Forget what left the directory's list.
local function forget(self, list)
  local there = {}
  for _, path in ipairs(list) do there[path] = true end
  for path in pairs(self._finished) do
    if not there[path] then self._finished[path] = nil end
  end
end

--- A checkpoint that is ours now; else nil, and whether others still are at work.
local function find(self)
  local list, waiting = candidates(self), false
  forget(self, list)
  for _, path in ipairs(list) do
    if not self._finished[path] then
      local ours, why = self._claims:take(path)
      if ours then return path end
      if why == "done" then self._finished[path] = true end
      waiting = waiting or why == "held"
    end
  end
  return nil, waiting
end

--- Was the checkpoint evaluated that ends it, by whomever?
local function ended(self, waiting)
  if waiting then return false end
  for path in pairs(self._finished) do
    local n = self.max_evaluations and number_of(path)
    if n and n >= self.max_evaluations then
      log("info", "Last checkpoint evaluated. SidecarEvaluator stops.")
      return true
    end
  end
  if core.training_ended() then
    -- The chief wrote its last checkpoint before it ended; was it there when we looked?
    if self._last_look then return true end
    self._last_look = true
  end
  return false
end

--- The next checkpoint; nil when there is no more.
local function await(self)
  local since = core.time()
  while true do
    local path, waiting = find(self)
    if path then return path end
    if ended(self, waiting) then return nil end
    if core.time() - since > PATIENCE then
      since = core.time()
      log("info", "No checkpoints appear to be found after %d seconds. Please check if you are properly using a "
        .. 'tm.train.Checkpoint/CheckpointManager or tm.callbacks.ModelCheckpoint(path, { save_weights_only = true }) '
        .. 'to save checkpoints by the training in "%s".', PATIENCE, self.checkpoint_dir)
    end
    core.sleep(POLL)
  end
end

-- --- restoring ---

local function names_of(path)
  local reader, err = core.ckpt.open(path)
  if not reader then return nil, err end
  local tensors, model = {}, false
  for _, t in ipairs(reader:tensors()) do
    tensors[t.name] = true
    model = model or t.name:match "^model/" ~= nil
  end
  reader:close()
  return tensors, model
end

--- All the weights of the model, and how many steps the optimizer had done; nothing else
--- of the checkpoint (slots would only take memory).
local function restore(self, path)
  local tensors, has_model = names_of(path)
  if not tensors then error(has_model, 0) end
  if not tensors["optimizer/iterations"] then
    errors.raise("failed_precondition", '%s: "iterations" cannot be loaded from the checkpoint "%s". Please ensure '
      .. "that the checkpoint saved during training has the optimizer: tm.train.Checkpoint{ model = model, optimizer "
      .. "= optimizer }, or tm.callbacks.ModelCheckpoint", NAME, path)
  end
  if not has_model then
    errors.raise("failed_precondition", '%s: Nothing to load: the checkpoint "%s" has no model; save it as '
      .. "tm.train.Checkpoint{ model = model, optimizer = optimizer }", NAME, path)
  end
  local function need(l)
    if l.kind ~= "variable" then return false end
    for _, v in ipairs(self.model.weights) do
      if v == l.variable then return true end
    end
    return false
  end
  local names = { ["optimizer/iterations"] = self.model.optimizer.iterations }
  local status, err = checkpoint.new({ model = self.model }):_read_whole(path, need, false, names)
  if not status then error(err, 0) end
  if self.model.built then status:_close() end
end

--- Is it an error of a checkpoint that others took away meanwhile, or that is not whole?
local function is_passing(path, e)
  if not errors.is_error(e) then return false end
  return e.code == "data_loss" or (e.code == "not_found" and not core.claim.identity(path))
end

-- --- evaluating ---

--- Signs of life while it runs; before all other callbacks, so that none of them writes
--- down what another evaluator does again.
local function guard(self)
  local function alive()
    if not self._claims:beat() then errors.raise("aborted", "another evaluator has taken this checkpoint over") end
  end
  return { on_test_begin = alive, on_test_batch_end = alive, on_test_end = function()
    if not self._claims:ours() then errors.raise("aborted", "another evaluator has taken this checkpoint over") end
  end }
end

local function has_tensorboard(list)
  if type(list) ~= "table" then return false end
  if list.class_name == "TensorBoard" then return true end
  for _, cb in ipairs(list) do
    if has_tensorboard(cb) then return true end
  end
  return false
end

local function iterations(self)
  return place.eagerly(function() return self.model.optimizer.iterations:read():item() end)
end

--- As the callback TensorBoard does, where there is none.
local function write(self, logs)
  if has_tensorboard(self.callbacks) then return end
  if not self._writer then
    self._writer = tm.summary.create_file_writer(state.join(self.log_dir or self.checkpoint_dir, "validation"))
  end
  local step, names = iterations(self), {}
  for name in pairs(logs) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    if type(logs[name]) == "number" then
      self._writer:scalar("evaluation_" .. name .. "_vs_iterations", logs[name], step)
    end
  end
  self._writer:flush()
end

local function text(logs)
  local parts = {}
  for name, x in pairs(logs) do parts[#parts + 1] = ("%s=%s"):format(name, tostring(x)) end
  table.sort(parts)
  return table.concat(parts, " ")
end

--- Those that want to know what is evaluated.
local function tell(callbacks, path)
  if type(callbacks) ~= "table" then return end
  if type(callbacks.set_checkpoint) == "function" then return callbacks:set_checkpoint(path) end
  for _, cb in ipairs(callbacks) do tell(cb, path) end
end

local function evaluate(self, path)
  place.eagerly(restore, self, path)
  tell(self.callbacks, path)
  log("info", "Evaluation starts: Model weights loaded from latest checkpoint file %s", path)
  local logs = self.model:evaluate(self.data, { steps = self.steps, verbose = self.verbose,
    callbacks = { guard(self), self.callbacks or {} } })
  log("info", "End of evaluation. Metrics: %s", text(logs))
  write(self, logs)
end

--- One checkpoint that is ours.
local function take(self, path)
  self.latest = path
  local ok, e = pcall(evaluate, self, path)
  self._claims:close(ok)
  if ok then
    self._finished[path] = true
  elseif errors.is_error(e, "aborted") then
    log("warn", "%s: %s", path, e.message)
  elseif is_passing(path, e) then
    log("info", "encountered an error when loading the checkpoint at %s. Retrying. Error: %s", path, tostring(e))
    self._finished[path] = state.exists(path) or nil -- damaged: not again
  else
    error(e, 0)
  end
end

local function run(self)
  while true do
    local path = await(self)
    if not path then return end
    take(self, path)
    self._claims:tidy()
    local n = self.max_evaluations and not self.every and number_of(path)
    if n and n >= self.max_evaluations and self._finished[path] then
      log("info", "Last checkpoint evaluated. SidecarEvaluator stops.")
      return
    end
  end
end

--- Evaluate until the checkpoint with the number max_evaluations (behind the last "-")
--- was, or for ever.
function Sidecar:start()
  if not rawget(self.model, "_compiled") then
    errors.raise("failed_precondition", "%s: the model is not compiled; model:compile{ loss, metrics } says what is "
      .. "evaluated", NAME)
  end
  local ok, e = pcall(run, self)
  self._claims:close(false)
  if self._writer then self._writer:close() end
  self._writer = nil
  if not ok then error(e, 0) end
end

function Sidecar:__tostring() return ("%s(%q)"):format(NAME, self.checkpoint_dir) end

return { new = new }
