--- tm.train.CheckpointManager: keeps the newest checkpoints of a directory.
---
---     local manager = tm.train.CheckpointManager(checkpoint, "runs", { max_to_keep = 3 })
---     manager:restore_or_initialize()
---     manager:save()                       -- path; nil: not due; nil, err: it failed
---
--- Invariants
---   (1) The list is written before old checkpoints are deleted and again after it, so
---       the latest is never one that is gone.
---   (2) What was kept for its time leaves the list and is never deleted.
---   (3) The list is shared with whoever else saves in the directory: a manager counts and
---       deletes what has its own checkpoint_name, and leaves the rest alone.

local kinds = require "tidemill.lib.kinds"
local checkpoints = require "tidemill.train.checkpoint"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local increments = require "tidemill.train.increments"
local options = require "tidemill.lib.options"
local saving = require "tidemill.train.saving"
local state = require "tidemill.train.state"
local values = require "tidemill.lib.values"

local M = {}

---@class tm.train.CheckpointManager
---@field latest_checkpoint string?
---@field checkpoints string[]
local Manager = { __name = "tm.train.CheckpointManager" }
local methods = {}

local function paths(self)
  local out = {}
  for i, item in ipairs(self._list) do out[i] = state.join(self.directory, item.name) end
  return out
end

function Manager.__index(self, key)
  if methods[key] then return methods[key] end
  local list = rawget(self, "_list")
  if key == "latest_checkpoint" then
    return #list > 0 and state.join(self.directory, list[#list].name) or nil
  end
  if key == "checkpoints" then return paths(self) end
end

local known = {
  "keep_checkpoint_every_n_hours", "step_counter", "checkpoint_interval", "init_fn", max_to_keep = 5,
  checkpoint_name = "ckpt", incremental = false, stream = false,
}

local function check(o)
  if o.max_to_keep then options.number("CheckpointManager", "max_to_keep", o.max_to_keep) end
  if o.max_to_keep and o.max_to_keep <= 0 then
    errors.raise("invalid_argument", "CheckpointManager: max_to_keep is a number above 0, or false to keep all, got %s",
      tostring(o.max_to_keep))
  end
  if o.keep_checkpoint_every_n_hours then
    options.number("CheckpointManager", "keep_checkpoint_every_n_hours", o.keep_checkpoint_every_n_hours, 0)
  end
  if o.checkpoint_interval then
    options.number("CheckpointManager", "checkpoint_interval", o.checkpoint_interval, 0)
    if o.step_counter == nil then
      errors.raise("invalid_argument", "CheckpointManager: checkpoint_interval needs step_counter")
    end
  end
  local steps = o.step_counter
  if steps ~= nil and type(steps) ~= "function" and not values.is_variable(steps) then
    errors.raise("invalid_argument", "CheckpointManager: step_counter is a variable, or a function that gives a "
      .. "number, got %s", kinds.a(steps))
  end
  if o.init_fn ~= nil then options.callable("CheckpointManager", "init_fn", o.init_fn) end
  options.flag("CheckpointManager", "stream", o.stream)
  options.path("CheckpointManager: checkpoint_name", "the name of a file", o.checkpoint_name)
  if o.checkpoint_name:find("/", 1, true) then
    errors.raise("invalid_argument", "CheckpointManager: checkpoint_name is the name of a file in the directory, "
      .. "without /, got %q", o.checkpoint_name)
  end
end

--- Is a name of the directory's list one of ours?
local function ours(self, name)
  local prefix = self._o.checkpoint_name .. "-"
  return name:sub(1, #prefix) == prefix
end

--- Our part of the directory's list, oldest first.
local function take(self, list)
  self._list = {}
  for _, item in ipairs(list) do
    if ours(self, item.name) then self._list[#self._list + 1] = item end
  end
end

--- What an earlier manager left.
local function adopt(self)
  local now = os.time()
  self._list, self._preserved = {}, now
  core.ckpt.sweep(self.directory, self._o.checkpoint_name)
  local list, err = state.read(self.directory)
  if not list then
    if err.code ~= "not_found" then core.log("warn", ("CheckpointManager: %s"):format(tostring(err))) end
    return
  end
  take(self, list)
  self._preserved = list.preserved > 0 and list.preserved or now
  if now < self._preserved then
    core.log("warn", ("CheckpointManager: the clock went back; what \"%s\" has is kept for ever")
      :format(self.directory))
    self._preserved, self._forget = now, {}
    for i = 1, #self._list - 1 do self._forget[i] = self._list[i].name end
    self._list = { self._list[#self._list] }
    self._keep = self._list[1] and self._list[1].name
  end
end

--- CheckpointManager(checkpoint, directory, { max_to_keep = 5, ... })
function M.new(checkpoint, directory, given)
  if not checkpoints.is(checkpoint) then
    errors.raise("invalid_argument", "CheckpointManager takes a Checkpoint first")
  end
  options.path("CheckpointManager", "a directory second", directory)
  local o = options.read("CheckpointManager", given, known)
  check(o)
  local self = { checkpoint = checkpoint, directory = directory:gsub("(.)/+$", "%1"), _o = o,
    _increments = increments.new("CheckpointManager", o.incremental),
    checkpoint_interval = o.checkpoint_interval, _marks = {} }
  adopt(self)
  return setmetatable(self, Manager)
end

local function step(self)
  local x = self._o.step_counter
  if type(x) == "function" then x = x() end
  if values.is_variable(x) then x = x:read() end
  if values.is_tensor(x) then x = x:item() end
  if type(x) ~= "number" then
    errors.raise("invalid_argument", "CheckpointManager: step_counter is a variable, or a function that gives a number")
  end
  return x
end

--- Change the directory's list; ours is what it says then.
local function record(self, add, gone)
  local list, err = state.change(self.directory, { add = add, time = os.time(), preserved = self._preserved,
    gone = gone })
  if not list then return nil, err end
  take(self, list)
  return true
end

--- What leaves the list, and which of it is deleted: those whose time has come stay on
--- disk.
local function sweep(self)
  local keep, hours = self._o.max_to_keep, self._o.keep_checkpoint_every_n_hours
  local leave, gone = {}, {}
  for i = 1, keep and #self._list - keep or 0 do
    local item = self._list[i]
    leave[i] = item.name
    if self._keep == item.name or (hours and item.time - hours * 3600 >= self._preserved) then
      self._preserved = item.time
    else
      gone[#gone + 1] = item.name
    end
  end
  return leave, gone
end

local function delete(self, names)
  for _, name in ipairs(names) do
    local ok, err = core.ckpt.remove(state.join(self.directory, name))
    if not ok and err.code ~= "not_found" then
      core.log("warn", ("CheckpointManager: %s"):format(tostring(err)))
    end
  end
end

local function due(self, now, check_interval)
  if not self.checkpoint_interval or not self._last_step then return true end
  if now == self._last_step then return false end
  return not check_interval or now >= self._last_step + self.checkpoint_interval
end

--- Note how far training was at each checkpoint: now() says how far it is, by clusters.
function methods:_count_by(now) self._now = now end

--- Only those that the list still has.
local function mark(self, path, moments)
  local marks = { [path] = moments }
  for _, p in ipairs(self.checkpoints) do marks[p] = marks[p] or self._marks[p] end
  self._marks = marks
end

local function read_save(given, more)
  local o = type(given) == "table" and given or more
  o = options.read("save", o, { "checkpoint_number", check_interval = true })
  if given ~= nil and type(given) ~= "table" then o.checkpoint_number = given end
  if o.checkpoint_number ~= nil then
    options.count("CheckpointManager: save", "checkpoint_number", o.checkpoint_number, 0)
    options.number("CheckpointManager: save", "checkpoint_number", o.checkpoint_number, 0, 2 ^ 53)
  end
  options.flag("CheckpointManager: save", "check_interval", o.check_interval)
  return o
end

--- Save: the path; nil when it is not due; nil and the error when it failed.
--- save(number?, { check_interval = true })
function methods:save(given, more)
  local o = read_save(given, more)
  local now = self.checkpoint_interval and step(self)
  if not due(self, now, o.check_interval) then return nil end
  local prefix = state.join(self.directory, self._o.checkpoint_name)
  local how = self._increments and self._increments:how() or {}
  how.stream = self._o.stream
  local path, err = self.checkpoint:save(prefix, { number = o.checkpoint_number, keep_state = true, how = how })
  if not path then return nil, err end
  if self._increments then self._increments:saved(path, how, saving.last) end
  local _, name = state.split(path)
  local ok
  ok, err = record(self, name, self._forget)
  if not ok then return nil, err end
  self._forget, self._last_step = nil, now
  mark(self, path, saving.last and saving.last.moments)
  local leave, gone = sweep(self)
  delete(self, gone)
  if #leave > 0 then ok, err = record(self, nil, leave) end
  if not ok then return nil, err end
  return path
end

--- What could not be restored is neither deleted nor overwritten by what is saved next.
local function keep_unrestored(self, path)
  local _, name = state.split(path)
  self._keep = name
  local number, counter = tonumber(name:match "%-(%d+)$"), self.checkpoint.save_counter
  if number and number > counter:read():item() then counter:assign(number) end
end

--- Restore the latest checkpoint: its path; without one init_fn is called: nil.
function methods:restore_or_initialize()
  local path = self.latest_checkpoint
  if path then
    local status, err = self.checkpoint:restore(path)
    if not status then
      keep_unrestored(self, path)
      core.log("warn", ("CheckpointManager: %q is not restored; it is kept, and saves are numbered on from it: %s")
        :format(path, tostring(err)))
      return nil, err
    end
    if self.checkpoint_interval then self._last_step = step(self) end
    mark(self, path, self._now and self._now())
    return path
  end
  if self._o.init_fn then self._o.init_fn() end
  return nil
end

--- Is x a CheckpointManager?
function M.is(x) return getmetatable(x) == Manager end

function Manager:__tostring() return ("tm.train.CheckpointManager(%q)"):format(self.directory) end

return M
