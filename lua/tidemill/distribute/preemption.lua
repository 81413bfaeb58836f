--- PreemptionWatcher: this task, or a task of its clusters, is asked to leave.
---
---     local watcher = tm.distribute.PreemptionWatcher()
---     watcher:on_message(function(text) manager:save() os.exit(143, true) end)
---     ...
---     if watcher.preemption_message then watcher:block_until_worker_exit() end
---
--- Messages come from this process's own sources (a thread in C looks at them) and from
--- tasks that tell their chief (the board in C).  Lua asks for both, on the script's
--- thread: in `heed`, which waits and calls of a coordinator come by.
---
--- Invariants
---   (1) A watcher sees each message once, in order; what has gone before it was made,
---       it does not see.
---   (2) One hook serves all watchers and checkpoints; it is there while one of them
---       has something to be called.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"
local wait = require "tidemill.distribute.wait"

local unpack = table.unpack or unpack

local M = {}

---@class tm.PreemptionWatcher
---@field preemption_message string?  the newest one
local Watcher = { __name = "tm.PreemptionWatcher" }
local methods = {}

local LOOK = 0.05 -- seconds between two looks for a process that ends
local GRACE = 30 -- seconds that a chief has for its checkpoint, a server to leave

local open = setmetatable({}, { __mode = "k" }) -- every watcher that is not closed
local listening = {} -- those with functions: kept alive
local savers = {} -- what saves at a message

-- --- options ---

local known = { "signals", "file", "url", "slurm", "kubernetes" }

local function bad(fmt, ...) errors.raise("invalid_argument", "PreemptionWatcher: " .. fmt, ...) end

local function read_text(name, x)
  if x ~= nil and (type(x) ~= "string" or x:find "%c") then
    bad("%s is a text of one line, got %s", name, type(x) == "string" and ("%q"):format(x) or kinds.a(x))
  end
end

local function read_url(url, to)
  if type(url) == "string" then url = { url = url } end
  if type(url) ~= "table" then bad("url is an address, or { url = ..., headers, timeout }, got %s", kinds.a(url)) end
  local o = options.read("PreemptionWatcher url", url, { "url", "headers", "resource", timeout = 5 })
  if type(o.url) ~= "string" then bad("url = { url = ... }: the address is missing") end
  to.url, to.resource, to.timeout, to.headers = o.url, o.resource, o.timeout, {}
  options.number("PreemptionWatcher", "timeout", o.timeout, 0)
  read_text("url.resource", o.resource)
  if o.headers ~= nil and type(o.headers) ~= "table" then
    bad('url.headers is a table: { ["Metadata-Flavor"] = "Google" }, got %s', kinds.a(o.headers))
  end
  for name, value in pairs(o.headers or {}) do
    if type(value) == "number" then value = tostring(value) end
    if type(value) ~= "string" or value:find("\0", 1, true) then
      bad("url.headers[%s] is a text of one line, got %s", type(name) == "string" and ("%q"):format(name)
        or tostring(name), type(value) == "string" and ("%q"):format(value) or kinds.a(value))
    end
    to.headers[#to.headers + 1] = type(name) == "string" and ("%s: %s"):format(name, value) or value
  end
end

local function read_pod(pod, to)
  to.kubernetes = pod and true
  if type(pod) ~= "table" then return end
  local o = options.read("PreemptionWatcher kubernetes", pod, { "api", "directory", "pod", timeout = 5 })
  options.number("PreemptionWatcher", "timeout", o.timeout, 0)
  read_text("kubernetes.api", o.api)
  read_text("kubernetes.directory", o.directory)
  read_text("kubernetes.pod", o.pod)
  to.pod_api, to.pod_directory, to.pod_name, to.pod_timeout = o.api, o.directory, o.pod, o.timeout
end

local function read_sources(sources, to)
  if sources == nil then
    to.environment = true
    return to
  end
  local s = options.read("PreemptionWatcher sources", sources, known)
  if s.signals ~= nil and type(s.signals) ~= "table" then
    bad('signals is a list of names: { "SIGTERM" }, got %s', kinds.a(s.signals))
  end
  if s.file ~= nil then options.path("PreemptionWatcher: file", "a path", s.file) end
  if s.slurm ~= nil then options.flag("PreemptionWatcher", "slurm", s.slurm) end
  if s.kubernetes ~= nil and type(s.kubernetes) ~= "table" then
    options.flag("PreemptionWatcher", "kubernetes", s.kubernetes)
  end
  to.signals, to.file, to.slurm = s.signals, s.file, s.slurm
  if s.url ~= nil then read_url(s.url, to) end
  read_pod(s.kubernetes, to)
  return to
end

-- --- messages ---

--- The next message of this task's own sources: text, signal.
local function own(self)
  if not self._handle then return end
  local text, signal = self._handle:get(self._seen + 1)
  if not text then return end
  self._seen = self._seen + 1
  return text, signal
end

--- The next one of another task: text, task.
local function theirs(self)
  if core.departures() == self._board then return end
  local d = core.departure(self._board)
  if not d then return end
  self._board = d.number
  return d.why, d.task
end

local function take(self)
  local text, signal = own(self)
  if text then
    self._own = text
    return text, self._task, signal
  end
  return theirs(self)
end

--- Read what is new into the watcher: every message is kept until its functions ran.
local function update(self)
  local text, task = take(self)
  while text do
    rawset(self, "_message", text)
    if #self._fns > 0 then self._todo[#self._todo + 1] = { text, task } end
    text, task = take(self)
  end
end

local function deliver(self)
  update(self)
  while #self._todo > 0 do
    local m = table.remove(self._todo, 1)
    for _, fn in ipairs(self._fns) do fn(m[1], m[2]) end
  end
end

local function heed()
  for _, saver in ipairs { unpack(savers) } do saver() end
  for _, self in ipairs { unpack(listening) } do
    if self._handle then deliver(self) end
  end
end

local detach

local function hook()
  if #listening + #savers > 0 and not detach then
    detach = wait.attend(heed)
  elseif #listening + #savers == 0 and detach then
    detach()
    detach = nil
  end
end

local function drop(list, x)
  for i = #list, 1, -1 do
    if list[i] == x then table.remove(list, i) end
  end
  hook()
end

-- --- the watcher ---

local function watcher(given)
  return setmetatable({ _handle = given and core.preempt(given), _seen = 0, _board = 0, _fns = {}, _todo = {},
    _task = M.task() }, Watcher)
end

--- Who is leaving now is news; who has left before is none.
local function catch_up(self)
  local d = core.departure(0)
  while d do
    if not (d.cut or d.gone) then rawset(self, "_message", d.why) end
    self._board = d.number
    d = core.departure(self._board)
  end
end

--- PreemptionWatcher{ sources = { signals = { "SIGTERM" }, file, url, slurm, kubernetes }, interval = 1 }
function M.new(given)
  local o = options.read("PreemptionWatcher", given, { "sources", interval = 1 })
  options.number("PreemptionWatcher", "interval", o.interval, 0.01)
  local self = watcher(read_sources(o.sources, { task = M.task(), interval = o.interval }))
  catch_up(self)
  open[self] = true
  return self
end

function Watcher.__index(self, key)
  if key == "preemption_message" then
    update(self)
    return rawget(self, "_message")
  end
  return methods[key]
end

--- Have fn(text, task) called for each message, on the script's thread: at the next wait,
--- step of fit or call of a coordinator.  It may save and os.exit.
function methods:on_message(fn)
  if type(fn) ~= "function" then bad("on_message takes a function, got %s", kinds.a(fn)) end
  if not self._handle then errors.raise("failed_precondition", "this PreemptionWatcher is closed") end
  update(self)
  self._fns[#self._fns + 1] = fn
  if #self._fns == 1 then
    if self._message then self._todo[1] = { self._message, self._task } end
    listening[#listening + 1] = self
    hook()
  end
  return self
end

--- Wait until the processes of all tasks that said they will leave have ended: whoever
--- connects then finds their replacements.  True; false when time is up.
function methods:block_until_worker_exit(given)
  local o = options.read("block_until_worker_exit", given, { "timeout" })
  if o.timeout ~= nil then options.number("block_until_worker_exit", "timeout", o.timeout, 0) end
  deliver(self)
  local deadline = o.timeout and core.time() + o.timeout
  while core.departures() > 0 and core.departures_left() > 0 do
    if deadline and core.time() >= deadline then return false end
    deliver(self)
    core.sleep(LOOK)
  end
  return true
end

--- Watch no more; the signals are what they were before.
function methods:close()
  if self._handle then self._handle:close() end
  self._handle = nil
  open[self] = nil
  drop(listening, self)
end
Watcher.__close = methods.close

function Watcher:__tostring()
  local text = rawget(self, "_message")
  return ("PreemptionWatcher(%s)"):format(text and ("%q"):format(text) or self._handle and "no message" or "closed")
end

-- --- checkpoints ---

local function say(level, fmt, ...) core.log(level, ("preemption_checkpoint: " .. fmt):format(...)) end

--- What to save, and the function that saves it: the path, or nil and why not.
local function saving(strategy, target)
  local manager = strategy._coordinator and strategy._coordinator.checkpoint_manager
  if type(target) == "table" then manager = target end
  if type(target) ~= "string" then
    if manager then return function() return manager:save { check_interval = false } end end
    return nil, "coordinator.checkpoint_manager is not set"
  end
  local checkpoint = manager and manager.checkpoint
  if not checkpoint then
    local list = {}
    for _, v in ipairs(strategy._variables) do list[#list + 1] = v end
    checkpoint = tm.train.Checkpoint { variables = list }
  end
  return function() return checkpoint:save(target) end
end

--- True when the state is safe.
local function save(strategy, target, text)
  local fn, why = saving(strategy, target)
  if not fn then
    say("warn", "nothing is saved (%s): %s", text, why)
    return false
  end
  local start = core.time()
  local ok, path, err = pcall(fn)
  if ok and path then
    say("warn", "%s: saved \"%s\" in %.2f s", text, path, core.time() - start)
  elseif ok and not err then
    say("warn", "%s: the latest checkpoint is of this step", text)
  else
    say("error", "%s: nothing was saved: %s", text, tostring(ok and err or path))
  end
  return ok and not err
end

--- End as the program would have without us, after its files are closed.
local function finish(text)
  say("warn", "%s: this chief ends", text)
  io.stdout:flush()
  os.exit(143, true)
end

--- Save at each message; gives a function that ends this.  Where the program handles
--- SIGTERM (and no watcher of the script's decides) the chief ends after saving.
function M.checkpoint(strategy, target)
  local self = watcher(core.is_program and { environment = true, task = M.task(), interval = 1, grace = GRACE } or nil)
  catch_up(self)
  local function saver()
    local text, who = take(self)
    if not text then return end
    local safe = save(strategy, target, text)
    if who == self._task and not next(open) then finish(text) end
    -- Each step from here on would be lost with it.
    if safe and who:find("/job:ps/", 1, true) then strategy._session:stop_task(who) end
  end
  savers[#savers + 1] = saver
  hook()
  return function()
    drop(savers, saver)
    if self._handle then self._handle:close() end
    self._handle = nil
  end
end

--- Check the option of a strategy.
function M.check_checkpoint(target)
  if target == true or (type(target) == "string" and target ~= "") then return end
  if type(target) == "table" and tm.train.is_manager(target) then return end
  errors.raise("invalid_argument", "ParameterServerStrategy: preemption_checkpoint is a CheckpointManager, the prefix "
    .. "of a path, or true (coordinator.checkpoint_manager), got %s", kinds.a(target))
end

-- --- servers in this process ---

--- Call leave(text, grace) once when a watcher of the script's has a message; gives a
--- function that ends this.
function M.leave_with(leave)
  local function look()
    for self in pairs(open) do
      update(self)
      if self._own and leave then
        leave(self._own, GRACE)
        leave = nil
      end
    end
  end
  savers[#savers + 1] = look
  hook()
  return function() drop(savers, look) end
end

-- --- who this is ---

local name

--- What this process is called in messages: what the environment names, else the chief.
function M.task()
  if name then return name end
  name = "/job:chief/task:0"
  for _, variable in ipairs { "TF_CONFIG", "TM_CONFIG" } do
    local config = core.json_decode(os.getenv(variable) or "")
    local task = type(config) == "table" and config.task
    if type(task) == "table" and task.type then
      name = ("/job:%s/task:%d"):format(task.type, math.floor(tonumber(task.index) or 0))
    end
  end
  return name
end

return M
