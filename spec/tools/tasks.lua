--- Clusters of tasks that a spec starts by hand: addresses, TM_CONFIG, processes.
---
---     local T = tasks.new(P, { workers = 2, ps = 1 })
---     T:start()                          -- its workers and ps
---     local chief = T:chief(script)      -- a chief with TM_CONFIG

local D = require("tidemill").distribute

local Tasks = {}
Tasks.__index = Tasks

local M = {}

local function json(x)
  if type(x) ~= "table" then return type(x) == "number" and ("%d"):format(x) or ("%q"):format(x) end
  local parts = {}
  if x[1] ~= nil then
    for i, v in ipairs(x) do parts[i] = json(v) end
    return "[" .. table.concat(parts, ", ") .. "]"
  end
  for k, v in pairs(x) do parts[#parts + 1] = json(k) .. ": " .. json(v) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

--- n different addresses on ports that the system gave.
local function addresses(n, ports)
  local list = {}
  while #list < n do
    local port = D.pick_unused_port()
    local new = true
    for _, other in ipairs(ports) do new = new and other ~= port end
    if new then
      ports[#ports + 1] = port
      list[#list + 1] = "127.0.0.1:" .. port
    end
  end
  return list
end

--- A cluster whose processes P (spec/tools/process.lua) starts.
function M.new(P, size)
  local self = setmetatable({ P = P, ports = {} }, Tasks)
  self.jobs = { worker = addresses(size.workers or 1, self.ports), ps = addresses(size.ps or 1, self.ports) }
  self.worker, self.ps = {}, {}
  return self
end

--- The environment of a task.
function Tasks:env(kind, index)
  local task = kind and { type = kind, index = index or 0 } or nil
  return { TM_CONFIG = json { cluster = self.jobs, task = task, cluster_id = self.id } }
end

--- Start (again) one task; args follow its role.
function Tasks:task(kind, index, args)
  local words = { kind }
  for _, a in ipairs(args or {}) do words[#words + 1] = a end
  local p = self.P.run(words, self:env(kind, index))
  self[kind][index + 1] = p
  return p
end

--- Start all workers and ps.
function Tasks:start(args)
  for _, kind in ipairs { "ps", "worker" } do
    for i = 1, #self.jobs[kind] do self:task(kind, i - 1, args) end
  end
  return self
end

--- Start a chief: the text of a script and its arguments.
function Tasks:chief(text, ...) return self.P.run({ self.P.script(text), ... }, self:env("chief", 0)) end

--- Every worker and ps.
function Tasks:each(fn)
  for _, kind in ipairs { "worker", "ps" } do
    for _, p in ipairs(self[kind]) do fn(p, kind) end
  end
end

return M
