--- Symbols: tm.Input and what layers and ops make of it; the layer graph of functional
--- models.
---
--- A node is one call of a layer, or one op, with its arguments as they were given; the
--- insides of a layer are not recorded.  A model replays nodes in the order in which
--- they were made, so `training` reaches every layer and each run joins the trace that
--- is open then.
---
--- Invariants
---   (1) Nodes are numbered in order of creation, so a node's arguments come from nodes
---       with smaller numbers.
---   (2) A symbol never changes; its type comes from a scratch trace of its node.

local context = require "tidemill.layers.context"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local shapes = require "tidemill.lib.shapes"
local nest = require "tidemill.lib.nest"
local trace = require "tidemill.trace"
local values = require "tidemill.lib.values"

local M = {}

local Symbol = { __tm_symbol = true, __name = "tm.Symbol" }

M.is = values.is_symbol

local nodes_made, inputs_made = 0, 0

local function new_symbol(node, spec, name)
  return setmetatable({ node = node, shape = spec.shape, dtype = spec.dtype, rank = #spec.shape, name = name },
    Symbol)
end

local function new_node(fields)
  nodes_made = nodes_made + 1
  fields.number = nodes_made
  return fields
end

--- The symbols in a structure of arguments, each once, in walking order.
local function symbols_in(args)
  local list, seen = {}, {}
  for _, x in ipairs(nest.flatten(args)) do
    if M.is(x) and not seen[x] then
      seen[x] = true
      list[#list + 1] = x
    end
  end
  return list
end

--- Arguments with symbols replaced by what they stand for.
local function substitute(args, env)
  return nest.map(function(x)
    if not M.is(x) then return x end
    local v = env[x]
    if v == nil then
      errors.raise("invalid_argument", 'the model has no value for the input "%s"', x.name or "?")
    end
    return v
  end, args)
end

--- Compute one node; its outputs are added to env.
function M.run_node(node, env, training)
  local out = node.call(substitute(node.args, env), training)
  local flat = nest.flatten(out)
  for i, s in ipairs(node.outputs) do env[s] = flat[i] end
end

--- Record a node and give its outputs in the structure that `call` returns.
local function record(node)
  local inputs = symbols_in(node.args)
  local specs, result = {}, nil
  for i, s in ipairs(inputs) do specs[i] = { shape = s.shape, dtype = s.dtype } end
  local types = trace.types(function(...)
    local env = {}
    for i, s in ipairs(inputs) do env[s] = (select(i, ...)) end
    result = context.run_scratch(node.call, substitute(node.args, env), false)
    return nest.unpack(nest.flatten(result))
  end, specs)
  new_node(node)
  node.outputs = {}
  local i = 0
  return nest.map(function()
    i = i + 1
    node.outputs[i] = new_symbol(node, types[i], node.name)
    return node.outputs[i]
  end, result)
end

--- A layer called with symbols.
function M.apply_layer(layer, x, training)
  return record {
    kind = "layer",
    layer = layer,
    training = training,
    name = layer.name,
    args = { x },
    call = function(args, how)
      if training ~= nil then how = training end
      return layer(args[1], { training = how })
    end,
  }
end

--- kind says, for who saves the graph, what fn is: the "op" or the "operator" of this
--- name, the "method" of the first argument, an "index" into it.
local function apply(kind, name, fn, ...)
  return nest.unpack(record {
    kind = kind,
    name = name,
    args = nest.pack(...),
    call = function(args) return nest.pack(fn(nest.unpack(args))) end,
  })
end

--- The hook of ops: op(fn, name, args...) with a symbol among the arguments.
function M.op(fn, name, ...) return apply("op", name, fn, ...) end
core.hooks.symbol_op = M.op

local operators = {
  __add = function(a, b) return a + b end,
  __sub = function(a, b) return a - b end,
  __mul = function(a, b) return a * b end,
  __div = function(a, b) return a / b end,
  __mod = function(a, b) return a % b end,
  __pow = function(a, b) return a ^ b end,
  __unm = function(a) return -a end,
}
M.operators = operators
for name, fn in pairs(operators) do
  Symbol[name] = function(a, b)
    if name == "__unm" then b = nil end
    return apply("operator", name, fn, a, b)
  end
end

local function compare()
  errors.raise("invalid_argument", "a Lua comparison of tm.Input symbols has no answer; use x:less(y) and tm.cond")
end
Symbol.__lt, Symbol.__le = compare, compare

function Symbol:__tostring()
  return ("tm.Input symbol %q of shape %s, %s"):format(self.name or "?", shapes.text(self.shape), self.dtype)
end

--- x[i], and methods: each is recorded as it was called.
function Symbol.__index(self, key)
  if type(key) == "string" then
    if key:sub(1, 1) == "_" or not core.methods[key] then return nil end
    return function(x, ...)
      return apply("method", key, function(v, ...) return v[key](v, ...) end, x, ...)
    end
  end
  return apply("index", "index", function(v) return v[key] end, self, key)
end

function Symbol.__newindex()
  errors.raise("invalid_argument", "symbols cannot be changed")
end

--- tm.Input{ shape, dtype, name, batch_size }: shape is without the batch.
function M.input(given)
  local o = options.read("Input", given, { "shape", "name", "batch_size", dtype = "float32" })
  local shape = { o.batch_size or -1 }
  if type(options.need("Input", o, "shape")) ~= "table" then
    errors.raise("invalid_argument", "Input: shape is a list of sizes without the batch, as in { 28, 28 }")
  end
  for i, n in ipairs(o.shape) do
    if n ~= -1 then options.count("Input", "a size of shape", n, 0) end
    shape[i + 1] = n
  end
  inputs_made = inputs_made + 1
  local name = o.name or "input_" .. inputs_made
  local node = new_node { name = name, args = {}, outputs = {}, is_input = true }
  node.outputs[1] = new_symbol(node, { shape = shape, dtype = o.dtype }, name)
  return node.outputs[1]
end

--- Nodes that lead from inputs to outputs, in order.  Raises when an output needs an
--- input that is not among `inputs`.
function M.graph(inputs, outputs)
  local given, seen, order = {}, {}, {}
  for _, s in ipairs(inputs) do given[s] = true end
  local stack = {}
  for _, s in ipairs(outputs) do stack[#stack + 1] = s end
  while #stack > 0 do
    local s = table.remove(stack)
    if not given[s] and not seen[s.node] then
      seen[s.node] = true
      if s.node.is_input then
        errors.raise("invalid_argument", 'Model: the outputs depend on the input "%s", which is not among inputs',
          s.name)
      end
      order[#order + 1] = s.node
      for _, x in ipairs(symbols_in(s.node.args)) do stack[#stack + 1] = x end
    end
  end
  table.sort(order, function(a, b) return a.number < b.number end)
  return order
end

--- Variables that a node was given (a loose op's arguments).
function M.variables_of(node)
  local out = {}
  for _, x in ipairs(nest.flatten(node.args)) do
    if values.is_variable(x) then out[#out + 1] = x end
  end
  return out
end

return M
