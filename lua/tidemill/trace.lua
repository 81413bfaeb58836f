--- Tracing: run Lua on symbolic values, get a graph.
---
--- Everything that opens traces (tm.func, tm.cond, datasets' map) goes through here, so
--- an error closes what was opened.

local core = require "tidemill.core"
local coroutines = require "tidemill.lib.coroutines"
local errors = require "tidemill.errors"

local M = {}

local contexts = coroutines.keep(setmetatable({}, { __mode = "k" }))

--- The tm.func that the running coroutine traces, as { func, first }; nil: none.
function M.context() return coroutines.find(contexts) end

local function leave_named(context, path, from, outer, ok, ...)
  context.path = outer
  if not ok then error((...), 0) end
  local list = context.scopes
  list[#list + 1] = { path = path, from = from, to = core.trace_size(context.trace) }
  return ...
end

--- fn(...), whose nodes are under a name where a graph is drawn (Function:_drawn).
function M.named(name, fn, ...)
  local context = coroutines.find(contexts)
  if not context or not context.scopes then return fn(...) end
  local outer = context.path
  local path = outer and outer .. "/" .. name or name
  context.path = path
  return leave_named(context, path, core.trace_size(context.trace), outer, pcall(fn, ...))
end

--- Keep where an error was raised: pcall would lose it.
local function with_traceback(e)
  if errors.is_error(e) then
    e.traceback = e.traceback or debug.traceback("", 2)
  end
  return e
end

local function finish(mark, ok, ...)
  if not ok then
    core.unwind(mark)
    error((...), 0)
  end
  return ...
end

--- fn(...); traces, tapes and eager marks that it leaves open by an error are closed.
function M.guard(fn, ...)
  local mark = core.mark()
  local args, n = { ... }, select("#", ...)
  local unpack = table.unpack or unpack
  return finish(mark, xpcall(function() return fn(unpack(args, 1, n)) end, with_traceback))
end

local function eager_done(...)
  core.pop_eager()
  return ...
end

--- fn(...) eagerly, whatever trace is open.
function M.eagerly(fn, ...)
  if not core.tracing() then return fn(...) end
  return M.guard(function(...)
    core.push_eager()
    return eager_done(fn(...))
  end, ...)
end
core.eagerly = M.eagerly

local describers = coroutines.keep(setmetatable({}, { __mode = "k" }))

--- Is the running coroutine inside a dataset function?
function M.describing() return coroutines.find(describers) == true end

--- fn(...) as a dataset function, or as none.
function M.describing_as(yes, fn, ...)
  local k = coroutines.key()
  local before = describers[k]
  describers[k] = yes or nil
  local function done(ok, ...)
    describers[k] = before
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn, ...))
end

--- fn(...) eagerly, as a dataset function.
function M.describe(fn, ...) return M.describing_as(true, M.eagerly, fn, ...) end

local worker_indices = setmetatable({}, { __mode = "k" })

--- Symbols that stand for nothing but the index of the worker.
function M.note_worker(x)
  worker_indices[x] = true
  return x
end
function M.is_worker(x) return worker_indices[x] == true end

--- A graph of its own: body(trace) makes arguments and returns the list of outputs.
--- `context` is what M.context gives meanwhile.
function M.graph(name, body, context)
  local k = coroutines.key()
  local before = contexts[k]
  local function run()
    core.push_eager()
    local tr = core.trace_begin(name)
    contexts[k] = context
    if context and context.scopes then context.trace = tr end
    local g = core.trace_end(tr, body(tr))
    core.pop_eager()
    return g
  end
  local ok, g = pcall(M.guard, run)
  contexts[k] = before
  if not ok then error(g, 0) end
  return g
end

--- A graph inside the open trace; returns it and the outer values that it captured.
function M.branch(name, body)
  return M.guard(function()
    local tr = core.trace_begin(name)
    local g = core.trace_end(tr, body(tr))
    return g, core.trace_captures(tr)
  end)
end

--- Types of what fn gives for values of these types ({ shape, dtype } each); nothing is
--- computed.
function M.types(fn, specs)
  local unpack = table.unpack or unpack
  local types = {}
  M.graph("types", function(tr)
    local args = {}
    for i, s in ipairs(specs) do args[i] = core.trace_arg(tr, s.dtype, s.shape) end
    local out = { fn(unpack(args, 1, #specs)) }
    for i, v in ipairs(out) do
      v = core.as_value(v)
      types[i] = { shape = v.shape, dtype = v.dtype }
    end
    return {}
  end, {})
  return types
end

return M
