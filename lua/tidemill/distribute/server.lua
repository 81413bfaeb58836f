--- Server: this process as a worker or ps of a cluster.

local cluster_spec = require "tidemill.distribute.cluster_spec"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local preemption = require "tidemill.distribute.preemption"
local wait = require "tidemill.distribute.wait"

local Server = { __name = "tm.Server" }
Server.__index = Server

local function bad(fmt, ...) errors.raise("invalid_argument", "Server: " .. fmt, ...) end

--- Server{ cluster_spec, job_name, task_index, config = { chief_timeout, cluster_id }, start }
local function new(opts)
  local o = options.read("Server", opts, { "cluster_spec", "job_name", "config", task_index = 0, start = true })
  local spec = cluster_spec.new(options.need("Server", o, "cluster_spec"))
  local job = options.need("Server", o, "job_name")
  if job ~= "worker" and job ~= "ps" then bad("job_name must be \"worker\" or \"ps\", got %s", tostring(job)) end
  local config = options.read("Server config", o.config, { "cluster_id", "chief_timeout" })
  local self = setmetatable({
    _address = spec:task_address(job, o.task_index), _job = job, _index = o.task_index, _config = config,
    _id = config.cluster_id or core.cluster_id(spec:job_tasks("worker"), spec:job_tasks("ps")),
  }, Server)
  self.target = "tm://" .. self._address
  if o.start then self:start() end
  return self
end

--- Listen (done by Server{} itself unless start = false).
function Server:start()
  if self._handle then return end
  self._handle = core.server(self._job, self._index, self._address, self._id, self._config.chief_timeout)
end

--- Serve until stopped, or until the chief stays away for longer than chief_timeout.  Where
--- a PreemptionWatcher of this script gets a message the task leaves, as `tidemill worker`
--- does: its chief is told, what it started is finished.
function Server:join()
  if not self._handle then errors.raise("failed_precondition", "this server is not started, or closed") end
  local done = preemption.leave_with(function(text, grace) self._handle:leave(text, grace) end)
  local r = nest.pack(pcall(wait.until_true, core.time, nil, function(slice) return self._handle:wait(slice) end))
  done()
  if not r[1] then error(r[2], 0) end
end

--- Stop serving.
function Server:close()
  if self._handle then self._handle:close() end
  self._handle = nil
end
Server.__close = Server.close

return { new = new }
