--- tm.func: a Lua function, traced once per signature into a graph that C runs.

local core = require "tidemill.core"
local data = require "tidemill.data"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local trace = require "tidemill.trace"
local variable = require "tidemill.variable"

local unpack = table.unpack or unpack
local M = {}

local INLINE_MAX = 100 -- below the depth at which Lua's C stack ends

---@class tm.Function
---@field trace_count integer
---@field graph string   text of the graph traced last
local Function = { __name = "tm.Function" }

-- --- signatures ---

-- Objects are told apart by a number of their own: an address may come back, and two
-- objects may read alike.
local object_ids, objects = setmetatable({}, { __mode = "k" }), 0

local function object_key(x)
  if not object_ids[x] then
    objects = objects + 1
    object_ids[x] = objects
  end
  return "o" .. object_ids[x]
end

local function number_key(x)
  if math.type and math.type(x) == "integer" then return "i" .. tostring(x) end
  return ("n%.17g"):format(x)
end

-- Iterators are told apart by the structure and types of their elements.
local function iterator_key(x)
  local key = rawget(x, "_spec_key")
  if not key then
    key = "i" .. data.spec_key(x.element_spec)
    rawset(x, "_spec_key", key)
  end
  return key
end

local function leaf_key(x, path, flat)
  local t = type(x)
  if t == "number" then return number_key(x) end
  if t == "boolean" then return "b" .. tostring(x) end
  if t == "string" then return ("s%d:%s"):format(#x, x) end
  if core.is_tensor(x) then
    flat[#flat + 1] = x
    return "t" .. core.typekey(x)
  end
  if variable.is(x) then return variable.key(x) end
  local mt = getmetatable(x)
  if type(mt) == "table" and (mt.__tm_iterator or mt.__tm_per_worker) then
    flat[#flat + 1] = x
    return iterator_key(x)
  end
  if type(mt) == "table" and mt.__tm_spec then
    flat[#flat + 1] = x
    return "t" .. x.key
  end
  if type(mt) == "table" and mt.__tm_tensor then
    flat[#flat + 1] = core.as_value(x)
    return "t" .. core.typekey(flat[#flat])
  end
  if t == "table" and mt ~= nil then return object_key(x) end
  errors.raise("invalid_argument", "argument%s is a %s: a function takes numbers, booleans, strings, tensors, "
    .. "variables, iterators and tables of them", path, t)
end

--- Text that tells signatures apart; inputs are appended to flat.  Names carry their
--- length, so { ["1"] = x } is not { x } and no name can look like two entries.
local function key_of(x, path, flat, depth)
  if not nest.is_nested(x) then return leaf_key(x, path, flat) end
  depth = nest.deeper(depth)
  local parts = {}
  for _, k in ipairs(nest.keys(x)) do
    local name = type(k) == "number" and tostring(k) or ("%d:%s"):format(#k, k)
    parts[#parts + 1] = name .. "=" .. key_of(x[k], nest.path(path, k), flat, depth)
  end
  return "{" .. (type(x.n) == "number" and "#" .. number_key(x.n) or "") .. table.concat(parts, ",") .. "}"
end

-- --- tracing ---

local function symbolic(tr, x)
  if core.is_tensor(x) then return core.trace_arg(tr, x.dtype, x.shape) end
  local mt = getmetatable(x)
  if type(mt) == "table" and (mt.__tm_iterator or mt.__tm_per_worker) then return data.trace_iterator(tr, x) end
  if type(mt) == "table" and mt.__tm_tensor and not variable.is(x) then
    local v = core.as_value(x)
    return core.trace_arg(tr, v.dtype, v.shape)
  end
  return x
end

--- Results as a structure of tensors, and the flat list of them.
local function results_of(self, r)
  local flat = {}
  local shape = nest.map_path(function(x, path)
    local t = type(x)
    if t == "function" or t == "thread" or (t == "userdata" and not core.is_tensor(x)) then
      errors.raise("invalid_argument", "%s: result%s is a %s; results are tensors, and tables of them", self.name,
        path, t)
    end
    if variable.is(x) then x = x:read() end
    flat[#flat + 1] = core.as_value(x)
    return nest.slot(#flat)
  end, r, "")
  return shape, flat
end

--- The graph as it is traced, its results as a structure, and their types.
local function trace_raw(self, args, context)
  local shape, types
  local raw = trace.graph(self.name, function(tr)
    local inputs = { n = args.n }
    for i = 1, args.n do
      if args[i] ~= nil then inputs[i] = nest.map(function(x) return symbolic(tr, x) end, args[i]) end
    end
    local r = nest.pack(self._fn(unpack(inputs, 1, args.n)))
    for i = 1, r.n do
      if r[i] == nil then errors.raise("invalid_argument", "%s: result %d is nil", self.name, i) end
    end
    local flat
    shape, flat = results_of(self, r)
    types = {}
    for i, v in ipairs(flat) do types[i] = { dtype = v.dtype, shape = v.shape, key = core.typekey(v) } end
    return flat
  end, context)
  return raw, shape, types
end

local function trace_now(self, args)
  local raw, shape, types = trace_raw(self, args, { name = self.name, first = self.trace_count == 0 })
  self.trace_count = self.trace_count + 1
  local graph = core.graph_optimize(raw)
  return {
    graph = graph, handles = variable.handles(core.graph_variables(graph)),
    out = {
      results = shape, types = types,
      --- Results in the structure of the function, from the flat list of tensors.
      rebuild = function(list)
        return nest.unpack(nest.map(function(i) return list[i.at] end, shape))
      end,
    },
  }
end

local function check_signature(self, args)
  local spec = self._signature
  if not spec then return args end
  if args.n ~= #spec then
    errors.raise("invalid_argument", "%s takes %d arguments, got %d", self.name, #spec, args.n)
  end
  local out = { n = args.n }
  for i, s in ipairs(spec) do
    local promised = (getmetatable(args[i]) or {}).__tm_spec
    local x = promised and args[i] or core.as_value(args[i], s.dtype)
    local fits = x.dtype == (s.dtype or "float32") and #x.shape == #s.shape
    for d, n in ipairs(s.shape) do
      fits = fits and (n == -1 or x.shape[d] == n or (promised and x.shape[d] == -1))
    end
    if not fits then
      errors.raise("invalid_argument", "%s: argument %d is %s of shape (%s), the signature says %s (%s)", self.name,
        i, x.dtype, table.concat(x.shape, ", "), s.dtype or "float32", table.concat(s.shape, ", "))
    end
    out[i] = x
  end
  return out
end

--- The trace for these arguments (made when new) and the flat list of its inputs.
local function concrete(self, args)
  args = check_signature(self, args)
  local flat, keys = {}, {}
  if self._signature then
    for i = 1, args.n do flat[i] = args[i] end
  else
    for i = 1, args.n do keys[i] = args[i] == nil and "n" or key_of(args[i], "[" .. i .. "]", flat) end
  end
  local key = table.concat(keys, ";")
  local c = self._traces[key]
  if not c then
    local like = args
    if self._signature then
      like = { n = args.n }
      for i, s in ipairs(self._signature) do like[i] = M.placeholder(s) end
    end
    c = trace_now(self, like)
    self._traces[key] = c
    self._last = c
  end
  return c, flat
end

local Placeholder = { __tm_spec = true }

--- A stand-in for a tensor of a declared type: for traces by input_signature, and for
--- results that are not there yet.
function M.placeholder(spec)
  return setmetatable({ dtype = spec.dtype or "float32", shape = spec.shape, key = spec.key }, Placeholder)
end

function M.is_placeholder(x) return getmetatable(x) == Placeholder end

local symbolic_plain = symbolic
symbolic = function(tr, x)
  local mt = getmetatable(x)
  if type(mt) == "table" and mt.__tm_spec then return core.trace_arg(tr, x.dtype, x.shape) end
  return symbolic_plain(tr, x)
end

--- For a coordinator: the trace (graph; out: how results are rebuilt, their types), and
--- the flat list of inputs.
function Function:_concrete(args)
  local list = { n = args.n or #args }
  for i = 1, list.n do list[i] = args[i] end
  return concrete(self, list)
end

--- For tm.summary: the graph before it is optimized, and which nodes which scope has.
--- It is traced for that and not counted.
function Function:_drawn(args)
  local context = { name = self.name, first = true, scopes = {} }
  local raw = trace_raw(self, args, context)
  return raw, context.scopes
end

local function inputs_of(flat)
  local list = {}
  for i, x in ipairs(flat) do
    local mt = getmetatable(x)
    if type(mt) == "table" and mt.__tm_iterator then
      list[i] = x._value
    elseif type(mt) == "table" and mt.__tm_per_worker then
      errors.raise("invalid_argument", "a per-worker iterator can only be used by a scheduled function")
    else
      list[i] = x
    end
  end
  return list
end

local function leave(context, ...)
  context.depth = context.depth - 1
  return ...
end

--- Inside another trace: a part of it.  A recursion that depends on values never ends here.
local function inlined(self, ...)
  local context = trace.context()
  if not context then return self._fn(...) end
  context.depth = (context.depth or 0) + 1
  if context.depth > INLINE_MAX then
    errors.raise("failed_precondition", "%s: functions call each other %d deep while traced: a recursion whose end "
      .. "depends on tensors is a tm.while_loop", self.name, INLINE_MAX)
  end
  return leave(context, self._fn(...))
end

function Function:__call(...)
  local args = nest.pack(...)
  if core.tracing() then return inlined(self, ...) end
  local c, flat = concrete(self, args)
  c.program = c.program or core.program(c.graph)
  return c.out.rebuild { core.run(c.program, inputs_of(flat)) }
end

local methods = { _concrete = Function._concrete, _drawn = Function._drawn }

function Function.__index(self, key)
  if key == "graph" then
    local c = rawget(self, "_last")
    return c and core.graph_text(c.graph) or ""
  end
  return methods[key]
end

function Function:__tostring()
  return ("tm.Function(%s, traced %d times)"):format(self.name, self.trace_count)
end

--- An input_signature with its leaves as { shape = ..., dtype = ... }.
local function signature_of(given)
  if given == nil then return nil end
  local out = {}
  for i, s in ipairs(nest.is_nested(given) and given or { false }) do
    local shape = type(s) == "table" and (s.shape or s[1])
    if type(shape) ~= "table" then
      errors.raise("invalid_argument", "func: input_signature is a list with an entry for each argument, "
        .. "entry %d must be like { shape = { -1, 2 }, dtype = \"float32\" }", i)
    end
    for d, n in ipairs(shape) do options.count("func", ("size %d of entry %d (-1: unknown)"):format(d, i), n, -1) end
    out[i] = { shape = shape, dtype = s.dtype or s[2] }
  end
  return out
end

--- func(fn, { name, input_signature }): input_signature is a list of { shape, dtype }.
function M.func(fn, opts)
  local callable = type(fn) == "function" or (type(fn) == "table" and (getmetatable(fn) or {}).__call)
  if not callable then errors.raise("invalid_argument", "tm.func takes a function, got %s", kinds.a(fn)) end
  local o = options.read("func", opts, { "name", "input_signature" })
  local name = o.name
  if not name and type(fn) == "function" then
    local info = debug.getinfo(fn, "S")
    name = ("%s:%d"):format(info.short_src, info.linedefined)
  end
  return setmetatable({ _fn = fn, name = name or "function", _signature = signature_of(o.input_signature), _traces = {},
    trace_count = 0 }, Function)
end

--- Is x a function object?
function M.is(x) return getmetatable(x) == Function end

return M
