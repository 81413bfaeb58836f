--- A cluster of real processes for specs: workers and ps that are killed, stopped and
--- started again at the same address, and a chief that runs a script.

local P = dofile "spec/tools/process.lua"
local tm = require "tidemill"

local Cluster = {}
Cluster.__index = Cluster

local M = { P = P }

local function json(list)
  local parts = {}
  for i, x in ipairs(list) do parts[i] = ("%q"):format(x) end
  return "[" .. table.concat(parts, ", ") .. "]"
end

--- Start `workers` workers and `ps` ps; args follow the role of each.
function M.start(workers, ps, args)
  local taken = {}
  local self = setmetatable({ ports = {}, jobs = { worker = {}, ps = {} }, tasks = { worker = {}, ps = {} },
    dir = P.dir() }, Cluster)
  for job, n in pairs { worker = workers, ps = ps } do
    while #self.jobs[job] < n do
      local port = tm.distribute.pick_unused_port()
      if not taken[port] then
        taken[port] = true
        self.ports[#self.ports + 1] = port
        table.insert(self.jobs[job], "127.0.0.1:" .. port)
      end
    end
  end
  for job, n in pairs { worker = workers, ps = ps } do
    for i = 0, n - 1 do self:run(job, i, args) end
  end
  return self
end

function Cluster:config(job, index)
  return ('{"cluster": {"worker": %s, "ps": %s}, "task": {"type": "%s", "index": %d}, "cluster_id": "spec"}'):format(
    json(self.jobs.worker), json(self.jobs.ps), job, index)
end

--- Start a task (again).
function Cluster:run(job, index, args)
  local words = { job }
  for _, a in ipairs(args or {}) do words[#words + 1] = a end
  self.tasks[job][index] = P.run(words, { TM_CONFIG = self:config(job, index) })
end

--- Every process of a worker or ps.
function Cluster:each(fn)
  for _, job in ipairs { "worker", "ps" } do
    for i = 0, #self.jobs[job] - 1 do fn(self.tasks[job][i]) end
  end
end

--- Send a signal; after STOP the task stands still.
function Cluster:signal(signal, job, index) self.tasks[job][index]:kill(signal) end

--- kill -9, and wait until it is gone.
function Cluster:kill(job, index)
  self.tasks[job][index]:kill "KILL"
  assert(self.tasks[job][index]:wait(5))
end

--- Run a script as the chief, with arguments.
function Cluster:chief(text, ...)
  self.boss = P.run({ P.script(text), ... }, { TM_CONFIG = self:config("chief", 0), DIR = self.dir })
  return self.boss
end

--- What a script waits for with await(name).
function Cluster:tell(name) assert(io.open(self.dir .. "/" .. name, "w")):close() end

--- Wait for a line of the chief's.
function Cluster:says(pattern, seconds)
  local found = self.boss:says(pattern, seconds)
  return found or error(("the chief does not say %q: %s%s"):format(pattern, self.boss:out(), self.boss:err()), 2)
end

--- The chief ends well within `seconds`; what it printed.
function Cluster:ends(seconds)
  local status = self.boss:wait(seconds or 10)
  if status ~= 0 then
    error(("the chief's status is %s: %s%s"):format(status, self.boss:out(), self.boss:err()), 2)
  end
  return self.boss:out()
end

return M
