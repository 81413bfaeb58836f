--- tm.callbacks.TensorBoard: what TensorBoard shows of a fit.
---
---     model:fit(data, { epochs = 10, callbacks = { tm.callbacks.TensorBoard{ log_dir = "logs/run1" } } })
---
--- `train/` and `validation/` below log_dir have the numbers, with Keras's tags; epochs are
--- steps of the epoch_ tags, iterations of the optimizer those of the others.
---
--- Invariants
---   (1) There are batch hooks only where an option needs them, and `logs` of a batch are
---       looked into only where they are written: each look is a READ on a cluster.
---   (2) Every variable is fetched once for all that is drawn of it.

local Callback = require "tidemill.callbacks.callback"
local class = require "tidemill.lib.class"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local summary = require "tidemill.summary"
local timeline = require "tidemill.fit.timeline"
local values = require "tidemill.lib.values"
local weights = require "tidemill.callbacks.board_weights"
local tm = require "tidemill.lib.lazy"

---@class tm.callbacks.TensorBoard : tm.callbacks.Callback
local TensorBoard = Callback:extend("TensorBoard")

local NAME = "TensorBoard"
local MOST = 64 -- numbers of one metric, each with a tag

local function read_freq(x)
  if x == "epoch" then return nil end
  if x == "batch" then return 1 end
  if type(x) == "number" then return options.count(NAME, "update_freq", x, 1) end
  return errors.raise("invalid_argument", '%s: update_freq is "epoch", "batch" or a number of batches, got %s', NAME,
    tostring(x))
end

--- 0: none; n: that batch; { from, to }.
local function read_profile(x)
  local t = type(x) == "table" and x or { x, x }
  local from, to = t[1], t[2]
  options.count(NAME, "profile_batch", from, 0)
  options.count(NAME, "profile_batch, its end,", to, from)
  if to > 0 then return { from = math.max(from, 1), to = to } end
end

--- TensorBoard(log_dir, { ... }), TensorBoard{ log_dir = "logs", histogram_freq = 0,
--- write_graph = true, write_images, write_steps_per_second, update_freq = "epoch" |
--- "batch" | n, profile_batch = n | { from, to }, embeddings_freq = 0,
--- embeddings_metadata, hparams = { name = value } }
function TensorBoard:init(log_dir, given)
  if given == nil then
    given = type(log_dir) == "string" and { log_dir = log_dir } or log_dir
  elseif type(given) == "table" then
    local all = { log_dir = log_dir }
    for k, v in pairs(given) do all[k] = v end
    given = all
  end
  local o = options.read(NAME, given, {
    "hparams", "embeddings_metadata", log_dir = "logs", histogram_freq = 0, write_graph = true, write_images = false,
    write_steps_per_second = false, update_freq = "epoch", profile_batch = 0, embeddings_freq = 0,
  })
  self.log_dir = options.path(NAME, "log_dir", o.log_dir)
  self.histogram_freq = options.count(NAME, "histogram_freq", o.histogram_freq, 0)
  self.embeddings_freq = options.count(NAME, "embeddings_freq", o.embeddings_freq, 0)
  self.embeddings_metadata = o.embeddings_metadata
  for _, name in ipairs { "write_graph", "write_images", "write_steps_per_second" } do
    self[name] = options.flag(NAME, name, o[name])
  end
  self.update_freq, self.profile = read_freq(o.update_freq), read_profile(o.profile_batch)
  self.hparams = o.hparams
  rawset(self, "_writers", {})
  if self.update_freq or self.profile then -- (1)
    rawset(self, "on_train_batch_begin", self._batch_begin)
    rawset(self, "on_train_batch_end", self._batch_end)
  end
end

--- The writer of a directory below log_dir; "": of log_dir itself.
function TensorBoard:_writer(name)
  local w = self._writers[name]
  if not w then
    w = summary.create_file_writer(name == "" and self.log_dir or self.log_dir .. "/" .. name)
    self._writers[name] = w
  end
  return w
end

--- A number, or some of them, or a picture of a table.
local function write(w, tag, x, step)
  if type(x) == "number" then return w:scalar(tag, x, step) end
  if type(x) == "boolean" then return w:scalar(tag, x and 1 or 0, step) end
  if not values.is_tensor(x) or x.dtype == "string" or x:size() == 0 then return end
  if x.rank == 1 then
    for i, v in ipairs(x:totable()) do
      if i <= MOST then w:scalar(("%s/%d"):format(tag, i), v, step) end
    end
  elseif x.rank == 2 then
    w:image(tag, weights.grey(x), step)
  end
end

--- Names of logs; a first look fills those that are fetched, where Lua knows no __pairs.
local function sorted(logs)
  local names, _ = {}, logs.loss
  for name in pairs(logs) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- --- steps ---

local function iterations(model)
  local o = model.optimizer
  return o and o.iterations and o.iterations:read():item() or nil
end

--- Steps that are done, as the optimizer counts them; where there is none, batches seen.
function TensorBoard:_step(batch) return self._from + batch end

local function learning_rate(model)
  local o = model.optimizer
  if not o then return nil end
  local rate = o.learning_rate
  if type(rate) == "number" then return rate end
  local ok, x = pcall(function() return values.tensor(rate(o.iterations:read()), "float32"):item() end)
  return ok and x or nil
end

-- --- hooks ---

function TensorBoard:on_train_begin()
  self._from, self._seen, self._graph = 0, 0, self.write_graph
  if self.profile then self.profile.done = nil end
  if self.hparams then self:_writer(""):hparams(self.hparams) end
  if self.embeddings_freq > 0 then weights.configure(self) end
end

function TensorBoard:on_epoch_begin()
  local fitting = rawget(self.model, "fitting")
  local begun = fitting and fitting.begun or 0
  self._from = (iterations(self.model) or self._seen) - begun
  self._last, self._began, self._first = begun, tm.time(), self._from + begun
  self._looked = self._began
end

--- A batch, or an execution of several, begins: `batch` is the first of it.
function TensorBoard:_batch_begin(batch)
  local p = self.profile
  if p and not p.done and self:_total(batch) >= p.from and not p.running then
    p.running = timeline.start()
  end
end

--- Batches since training began.
function TensorBoard:_total(batch) return self._seen + batch end

local function write_batch(self, batch, logs)
  local step, n = self:_step(batch), self.update_freq
  if math.floor(step / n) == math.floor(self:_step(self._last) / n) then return end
  local w, now = self:_writer "train", tm.time()
  for _, name in ipairs(sorted(logs)) do write(w, "batch_" .. name, logs[name], step) end
  if self.write_steps_per_second then
    local passed = self._told_at and batch - self._told_at or batch
    w:scalar("batch_steps_per_second", passed / math.max(now - self._looked, 1e-9), step)
  end
  self._looked, self._told_at = now, batch
end

function TensorBoard:_batch_end(batch, logs)
  if self._graph then self:_draw() end
  local p = self.profile
  if p and p.running then
    p.running:step(batch)
    if self:_total(batch) >= p.to then self:_stop_profile() end
  end
  if self.update_freq then write_batch(self, batch, logs) end
  self._last = batch
end

function TensorBoard:_stop_profile()
  local p = self.profile
  if p and p.running then
    p.running:write(self.log_dir)
    p.running, p.done = nil, true
  end
end

--- The graph of the train step, once it has run; none where steps run eagerly.
function TensorBoard:_draw()
  self._graph = false
  local fitting = rawget(self.model, "fitting")
  local runner = fitting and fitting.runner
  if not runner or runner.eager or not runner.iterator then return end
  local ok, e = pcall(function()
    local w = self:_writer "train"
    w:graph(runner.steps.fn, runner.iterator)
    w:flush()
  end)
  if not ok then core.log("warn", ("%s: the graph cannot be drawn: %s"):format(NAME, tostring(e))) end
end

function TensorBoard:on_epoch_end(epoch, logs)
  if self._graph then self:_draw() end
  local now = tm.time()
  self._seen = self._seen + (self._last or 0)
  self:_write_epoch(epoch, logs or {}, now)
  self._told_at = nil
  local histograms = self.histogram_freq > 0 and epoch % self.histogram_freq == 0
  local tables = self.embeddings_freq > 0 and epoch % self.embeddings_freq == 0
  if histograms or tables then weights.write(self, self:_writer "train", epoch, histograms, tables) end
  for _, w in pairs(self._writers) do w:flush() end
end

function TensorBoard:_write_epoch(epoch, logs, now)
  local train, rate = self:_writer "train", logs.learning_rate == nil and learning_rate(self.model)
  for _, name in ipairs(sorted(logs)) do
    local of_validation = name:match "^val_(.+)$"
    if of_validation then
      write(self:_writer "validation", "epoch_" .. of_validation, logs[name], epoch)
    else
      write(train, "epoch_" .. name, logs[name], epoch)
    end
  end
  if rate then train:scalar("epoch_learning_rate", rate, epoch) end
  if self.write_steps_per_second and self._began then
    local done = (iterations(self.model) or self._seen) - self._first
    train:scalar("epoch_steps_per_second", done / math.max(now - self._began, 1e-9), epoch)
  end
end

function TensorBoard:on_test_end(logs)
  local step = iterations(self.model) or self._seen or 0
  local w = self:_writer "validation"
  for _, name in ipairs(sorted(logs or {})) do
    write(w, ("evaluation_%s_vs_iterations"):format(name), logs[name], step)
  end
end

function TensorBoard:on_train_end()
  self:_stop_profile()
  if self.model.fitting and self.model.fitting.interrupted then return end -- no success
  if self.hparams then self:_writer(""):hparams_end "success" end
  self._finished = true
end

--- The call is over, well or not.
function TensorBoard:_release()
  if self.profile and self.profile.running then self.profile.running:stop() end
  if self.profile then self.profile.running = nil end
  if self.hparams and self._writers[""] and not self._finished then self:_writer(""):hparams_end "failure" end
  local writers = self._writers
  rawset(self, "_writers", {})
  self._finished = nil
  for _, w in pairs(writers) do w:close() end
end

--- Is x such a callback?
function TensorBoard.is(x) return class.is(x, TensorBoard) end

return TensorBoard
