--- tm.GradientTape: records ops; gradient walks them back.

local colon = require "tidemill.lib.colon"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local trace = require "tidemill.trace"
local variable = require "tidemill.variable"

local M = {}

---@class tm.GradientTape
local Tape = { __name = "tm.GradientTape" }
Tape.__index = Tape

--- Record ops until gradient (or close); trainable variables are watched.
function M.GradientTape(opts)
  local o = options.read("GradientTape", opts, { persistent = false })
  return setmetatable({ _tape = core.tape_begin(o.persistent), persistent = o.persistent }, Tape)
end

local function open(self)
  if not self._tape then
    errors.raise("failed_precondition", "this tape was used: make it with persistent = true to ask it twice")
  end
  return self._tape
end

--- Watch a tensor, or a list of them.
function Tape:watch(x)
  for _, t in ipairs(nest.flatten(x)) do
    if not variable.is(t) then core.tape_watch(open(self), t) end
  end
end

local function source_of(x, i)
  if variable.is(x) then return x._uid end
  if core.is_tensor(x) then return x end
  return errors.raise("invalid_argument", "gradient: source %d is no tensor and no variable but a %s", i, kinds.of(x))
end

--- The part of a variable's gradient that is of one shard.
local function gradient_of_shard(g, source)
  local ops, from, rows = core.ops, source.offset, source.shape[1]
  if type(g) ~= "table" then return core.methods.narrow(g, 1, from + 1, rows) end
  local mask = ops.logical_and(ops.greater_equal(g.ids, from), ops.less(g.ids, from + rows))
  return variable.slices(ops.boolean_mask(g.rows, mask), ops.sub(ops.boolean_mask(g.ids, mask), from), source.shape)
end

local function gradient_of(g, source)
  if not g then return nil end
  if variable.is(source) and source._shard then return gradient_of_shard(g, source) end
  if type(g) == "table" then return variable.slices(g.rows, g.ids, source.shape) end
  return g
end

--- A variable made of others: its gradient is theirs.
local function is_container(x) return variable.is(x) and x._join_gradients ~= nil end

local function sources_of(flat)
  local list = {}
  for i, x in ipairs(flat) do
    for _, s in ipairs(is_container(x) and x.variables or { x }) do list[#list + 1] = source_of(s, i) end
  end
  return list
end

local function gradient(self, target, sources, opts)
  local o = options.read("gradient", opts, { "output_gradients" })
  local tape = open(self)
  local one = not nest.is_nested(sources)
  local flat = one and { sources } or nest.flatten(sources)
  local list = sources_of(flat)
  local seed = o.output_gradients
  local total = target
  if nest.is_nested(target) then
    local parts = {}
    for i, t in ipairs(nest.flatten(target)) do parts[i] = core.ops.reduce_sum(t) end
    total = core.ops.add_n(parts)
  end
  local found = core.tape_gradient(tape, core.as_value(total), seed, list)
  if not self.persistent then self:close() end
  local i = 0
  local function take(x)
    if is_container(x) then
      local parts = {}
      for k, v in ipairs(x.variables) do parts[k] = take(v) end
      return x:_join_gradients(parts)
    end
    i = i + 1
    return gradient_of(found[i], x)
  end
  if one then return take(sources) end
  local out = nest.map(take, sources)
  if sources[1] ~= nil then out.n = #sources end
  return out
end

--- Gradients of sum(target) by each source, in the structure of the sources; nil where
--- nothing connects them.
function Tape:gradient(target, sources, opts) return trace.named("gradients", gradient, self, target, sources, opts) end

--- Stop recording and forget.
function Tape:close()
  if self._tape then core.tape_close(self._tape) end
  self._tape = nil
end
Tape.__close = Tape.close

colon.check(Tape, Tape)

--- fn(...) and its gradients by variables: value, gradients.
function M.value_and_grad(fn, variables, ...)
  if type(fn) ~= "function" and not (getmetatable(fn) or {}).__call then
    errors.raise("invalid_argument", "value_and_grad takes a function, got %s", kinds.a(fn))
  end
  return trace.guard(function(...)
    local tape = M.GradientTape()
    local value = fn(...)
    return value, tape:gradient(value, variables)
  end, ...)
end

return M
