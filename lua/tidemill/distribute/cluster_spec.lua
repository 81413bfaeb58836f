--- ClusterSpec: jobs and the addresses of their tasks.
--- A job is a list of addresses (task 0 first), or a table by task index {[0] = a, [2] = b}
--- for jobs with gaps.  Task indices count from 0, as in "/job:ps/task:0".

local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"

local ClusterSpec = {}
ClusterSpec.__index = ClusterSpec
ClusterSpec.__name = "tm.ClusterSpec"

local function bad(fmt, ...) errors.raise("invalid_argument", "ClusterSpec: " .. fmt, ...) end

local function tasks_of(job, value)
  if type(value) ~= "table" then
    bad("job '%s' must be a list of addresses, got %s", job, kinds.a(value))
  end
  local tasks, list = {}, value[0] == nil
  for k, address in pairs(value) do
    local index = tonumber(k)
    if not index or index % 1 ~= 0 then bad("job '%s' has the task index %s", job, tostring(k)) end
    if type(k) == "number" and list then index = index - 1 end
    if index < 0 then bad("job '%s' has the task index %d", job, index) end
    if type(address) ~= "string" or address == "" then
      bad("address of '/job:%s/task:%d' must be \"host:port\", got %s", job, index, tostring(address))
    end
    tasks[math.floor(index)] = address
  end
  return tasks
end

--- Make a spec of `{ worker = {...}, ps = {...} }`, or of another spec.
local function new(jobs)
  if getmetatable(jobs) == ClusterSpec then jobs = jobs:as_dict() end
  if type(jobs) ~= "table" then bad("expected a table of jobs, got %s", kinds.a(jobs)) end
  local self = { _jobs = {} }
  for job, value in pairs(jobs) do
    if type(job) ~= "string" then bad("job names are strings, got %s", tostring(job)) end
    self._jobs[job] = tasks_of(job, value)
  end
  return setmetatable(self, ClusterSpec)
end

--- Names of the jobs, sorted.
function ClusterSpec:jobs()
  local names = {}
  for job in pairs(self._jobs) do names[#names + 1] = job end
  table.sort(names)
  return names
end

local function job_of(self, job)
  local tasks = self._jobs[job]
  if not tasks then bad("no job '%s'; there are: %s", tostring(job), table.concat(self:jobs(), ", ")) end
  return tasks
end

local function indices(tasks)
  local list = {}
  for i in pairs(tasks) do list[#list + 1] = i end
  table.sort(list)
  return list
end

--- Number of tasks of a job.
function ClusterSpec:num_tasks(job) return #indices(job_of(self, job)) end

--- Task indices of a job, from 0, in order.
function ClusterSpec:task_indices(job) return indices(job_of(self, job)) end

--- Addresses of a job in order of task index.
function ClusterSpec:job_tasks(job)
  local tasks, list = job_of(self, job), {}
  for _, i in ipairs(indices(tasks)) do list[#list + 1] = tasks[i] end
  return list
end

--- Address of one task; `index` counts from 0.
function ClusterSpec:task_address(job, index)
  local address = job_of(self, job)[index]
  if not address then bad("no task '/job:%s/task:%s'", job, tostring(index)) end
  return address
end

--- A plain table: a list where indices have no gaps, else by index.
function ClusterSpec:as_dict()
  local dict = {}
  for job, tasks in pairs(self._jobs) do
    local list = indices(tasks)
    if #list == 0 or list[#list] == #list - 1 then
      dict[job] = self:job_tasks(job)
    else
      dict[job] = {}
      for i, address in pairs(tasks) do dict[job][tostring(i)] = address end
    end
  end
  return dict
end

--- No jobs at all.
function ClusterSpec:empty() return next(self._jobs) == nil end

function ClusterSpec.__eq(a, b)
  for _, pair in ipairs { { a, b }, { b, a } } do
    for job, tasks in pairs(pair[1]._jobs) do
      for i, address in pairs(tasks) do
        if not pair[2]._jobs[job] or pair[2]._jobs[job][i] ~= address then return false end
      end
    end
  end
  return true
end

function ClusterSpec:__tostring()
  local parts = {}
  for _, job in ipairs(self:jobs()) do
    parts[#parts + 1] = ("%s = {%s}"):format(job, table.concat(self:job_tasks(job), ", "))
  end
  return "ClusterSpec{" .. table.concat(parts, ", ") .. "}"
end

local M = {}

M.new = new
--- Is x a ClusterSpec?
function M.is(x) return getmetatable(x) == ClusterSpec end

return M
