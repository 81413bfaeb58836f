---@meta tidemill.core
--- The rest of the C module: this process, its cluster, files.  lua/tidemill/meta/core.lua
--- has tensors, traces and tapes.  Never loaded.

---@class tm.core
---@field is_program boolean?  this is the program `tidemill`, no stock Lua
---@field ckpt table<string, function>   files of checkpoints and models; lua/tidemill/train wraps it
---@field claim table<string, function>  work that processes share; distribute/claims.lua wraps it
local core = {}

--- Seconds, monotonic.
---@return number
function core.time() end

--- Ends early, with an error, at Ctrl-C.
---@param seconds number
function core.sleep(seconds) end

---@param seed integer
function core.set_seed(seed) end

---@return integer seed
---@return boolean given  set_seed was called
function core.seed() end

---@param n? integer  from now on
---@return integer  threads that kernels of this process may use
function core.threads(n) end

---@return integer bytes of tensors that Lua holds
---@return integer bytes of the core
function core.memory() end

---@param level string  "debug", "info", "warn" or "error"
---@param text string
function core.log(level, text) end

---@param where? string  "stderr", "stdout" or a file; nil: nowhere
---@param level? string
function core.log_to(where, level) end

--- Write to standard output, as tm.print does.
---@param text string
function core.print(text) end

--- Columns of the terminal that standard output is, nil where it is none.
---@return integer?
function core.terminal() end

--- Has the chief ended of the launcher that started this evaluator?
---@return boolean
function core.training_ended() end

---@return integer
function core.unused_port() end

--- A number that no other call gives, in any process.
---@return integer|userdata
function core.new_uid() end

-- --- Ctrl-C; only in the program; lua/tidemill/lib/interrupt.lua ---

---@param catcher function
function core.catch_interrupts(catcher) end

---@param n integer  so many calls of the catcher more
function core.interrupts_caught(n) end

--- Was there a Ctrl-C?  It is raised no more, and waits work.
---@return boolean
function core.note_interrupt() end

--- The next Ctrl-C is a first one.
function core.forget_interrupt() end

-- --- JSON, a foreign file ---

---@param text string
---@return any value, string? err
function core.json_decode(text) end

---@param value any
---@return string? text, string? err
function core.json_encode(value) end

---@param path string
---@return userdata? file, tm.Error? err
function core.safetensors(path) end

-- --- the cluster; lua/tidemill/distribute wraps it ---

---@param options table
---@return userdata
function core.session(options) end

---@param job string
---@param index integer
---@param address string
---@param id string
---@param chief_timeout? number
---@return userdata
function core.server(job, index, address, id, chief_timeout) end

---@param workers string[]
---@param ps string[]
---@return string
function core.cluster_id(workers, ps) end

--- A watcher of what the options name.
---@param options table
---@return userdata
function core.preempt(options) end

--- The next message of a task that leaves, behind the n-th.
---@param n integer
---@return table?
function core.departure(n) end

---@return integer  messages so far
function core.departures() end

---@return integer  tasks that said so and are still there
function core.departures_left() end

return core
