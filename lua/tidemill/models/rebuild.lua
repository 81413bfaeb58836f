--- A model from its description (tidemill.models.describe).
---
--- Nothing in a description is believed: ids, names, shapes are looked at before they are
--- used, and a layer that is made of itself is an error.

local codec = require "tidemill.models.codec"
local context = require "tidemill.layers.context"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local func = require "tidemill.func"
local initializers = require "tidemill.initializers"
local nest = require "tidemill.lib.nest"
local ops = require "tidemill.ops"
local place = require "tidemill.lib.place"
local registry = require "tidemill.models.registry"
local symbol = require "tidemill.layers.symbol"
local trace = require "tidemill.trace"
local tm = require "tidemill.lib.lazy"

local M = {}

---@class tm.models.Rebuilder
local Context = {}
Context.__index = Context

local BUILDING = {}

local function entry_at(ctx, list, what, id)
  local e = type(id) == "number" and type(list) == "table" and list[id]
  if type(e) ~= "table" then codec.bad(ctx, "there is no %s %s", what, tostring(id)) end
  return e
end

function Context:variable(id)
  local v = self.made_variables[id]
  if v then return v end
  local e = entry_at(self, self.doc.variables, "variable", id)
  v = place.variable(place.current() or false, initializers.Zeros(), {
    name = tostring(e.name), shape = codec.shape(self, e.shape, 0), dtype = tostring(e.dtype),
    trainable = e.trainable ~= false,
  })
  self.made_variables[id] = v
  return v
end

function Context:symbol(node, out)
  local s = self.symbols and self.symbols[node] and self.symbols[node][out]
  if not s then codec.bad(self, "there is no output %s of node %s", tostring(out), tostring(node)) end
  return s
end

-- --- functional models ---

local function input(ctx, e)
  local shape = {}
  for i, n in ipairs(codec.shape(ctx, e.shape, -1)) do shape[i] = n end
  local batch = table.remove(shape, 1)
  if not batch then codec.bad(ctx, "an input has no batch") end
  return symbol.input { shape = shape, dtype = tostring(e.dtype), name = e.name and tostring(e.name),
    batch_size = batch ~= -1 and batch or nil }
end

--- A function of ops by the name under which it was recorded.
local function op_named(ctx, name)
  local group, short = name:match "^(%a+)%.(.+)$"
  local fn = group and type(ops[group]) == "table" and ops[group][short] or ops[name]
  local info = core.op_info(name)
  if type(fn) ~= "function" and info and not info.hidden then fn = core.ops[name] end
  return type(fn) == "function" and fn or codec.bad(ctx, 'there is no op "%s"', name)
end

local call = {}

function call.layer(ctx, e, args)
  if e.training ~= nil and type(e.training) ~= "boolean" then codec.bad(ctx, "training of a call") end
  return ctx:layer(e.layer)(args[1], { training = e.training })
end

function call.op(ctx, e, args) return nest.pack(op_named(ctx, e.name)(nest.unpack(args))) end

function call.operator(ctx, e, args)
  local fn = symbol.operators[e.name] or codec.bad(ctx, 'there is no operator "%s"', tostring(e.name))
  if not (symbol.is(args[1]) or symbol.is(args[2])) then codec.bad(ctx, "an operator without operands") end
  return fn(args[1], args[2])
end

function call.method(ctx, e, args)
  if not symbol.is(args[1]) or not core.methods[e.name] then codec.bad(ctx, 'there is no method "%s"', e.name) end
  return nest.pack(args[1][e.name](nest.unpack(args)))
end

function call.index(ctx, _, args)
  if not symbol.is(args[1]) or type(args[2]) ~= "number" then codec.bad(ctx, "a subscript") end
  return args[1][args[2]]
end

local function node_outputs(ctx, e)
  if type(e) ~= "table" then codec.bad(ctx, "a node that is no table") end
  if e.kind == "input" then return { input(ctx, e) } end
  local fn = call[e.kind]
  if not fn or type(e.name) ~= "string" then codec.bad(ctx, "a node of the kind %s", tostring(e.kind)) end
  local args = codec.decode(ctx, e.args)
  if type(args) ~= "table" then codec.bad(ctx, "a node without arguments") end
  return nest.flatten(fn(ctx, e, args))
end

local function functional(ctx, class, e)
  local g, before = e.graph, ctx.symbols
  if type(g) ~= "table" or type(g.nodes) ~= "table" then codec.bad(ctx, "a graph without nodes") end
  local symbols = {}
  ctx.symbols = symbols
  for i, node in ipairs(g.nodes) do
    symbols[i] = node_outputs(ctx, node)
    ctx.symbols = symbols
  end
  local model = class { inputs = codec.decode(ctx, g.inputs), outputs = codec.decode(ctx, g.outputs), name = e.name }
  for _, w in ipairs(type(g.watched) == "table" and g.watched or {}) do
    local s = codec.decode(ctx, w.symbol)
    if w.where == "add_metric" then model:add_metric(s, tostring(w.name)) else model:add_loss(s) end
  end
  ctx.symbols = before
  return model
end

local function sequential(ctx, class, e)
  if type(e.stack) ~= "table" then codec.bad(ctx, "a stack of layers") end
  local model = class { name = e.name }
  if type(e.input) == "table" then model:add(input(ctx, e.input)) end
  for _, id in ipairs(e.stack) do model:add(ctx:layer(id)) end
  return model
end

-- --- layers ---

local function adapt(ctx, l, adapted)
  for key, name in pairs(type(adapted) == "table" and adapted or {}) do
    local known = false
    for _, k in ipairs(l.adapted or {}) do known = known or k == key end
    if not known then codec.bad(ctx, '"%s" is nothing that %s learns', tostring(key), l.class_name) end
    local x, err = ctx.reader:read(tostring(name))
    if x == nil then error(err, 0) end
    l:set_adapted(key, x)
  end
end

--- Call it once on types, as it was called when it was built.
local function build(ctx, l, built)
  local spec = codec.decode(ctx, built)
  local specs = nest.flatten(spec)
  for _, s in ipairs(specs) do
    if not func.is_placeholder(s) then codec.bad(ctx, "what a model was built with") end
  end
  trace.types(function(...)
    local i, args = 0, { ... }
    return nest.unpack(nest.flatten(context.run_scratch(l, nest.map(function()
      i = i + 1
      return args[i]
    end, spec))))
  end, specs)
end

local function make(ctx, e)
  if type(e.class) ~= "string" or type(e.name) ~= "string" then codec.bad(ctx, "a layer without class or name") end
  ctx.where = ('layer "%s" (%s)'):format(e.name, e.class)
  local l
  if e.graph or e.stack then
    local class = registry.find(e.class, "class", ctx.custom)
    local parent = e.graph and tm.Model or tm.Sequential
    if class ~= parent and not registry.extends(class, parent) then codec.bad(ctx, "it is no model") end
    l = (e.graph and functional or sequential)(ctx, class, e)
  else
    l = codec.build(ctx, e.class, codec.decode(ctx, e.config))
  end
  if not registry.is_a(l, tm.layers.Layer) then codec.bad(ctx, "it is no layer") end
  rawset(l, "name", e.name)
  rawset(l, "trainable", e.trainable ~= false)
  adapt(ctx, l, e.adapted)
  return l
end

function Context:layer(id)
  local l = self.made[id]
  if l == BUILDING then codec.bad(self, "layer %s is made of itself", tostring(id)) end
  if l then return l end
  self.made[id] = BUILDING
  local e = entry_at(self, self.doc.layers, "layer", id)
  local where, symbols = self.where, self.symbols
  l = make(self, e)
  self.made[id] = l
  if e.built and not l.built then build(self, l, e.built) end
  self.where, self.symbols = where, symbols
  return l
end

local function compile(ctx, model)
  ctx.lost = {}
  ctx.where = "compile"
  if type(ctx.doc.compile) ~= "table" then codec.bad(ctx, "what was compiled") end
  model:compile(codec.decode(ctx, ctx.doc.compile))
end

local function warn(doc)
  if type(doc.lost) ~= "table" or #doc.lost == 0 then return end
  local list = {}
  for i, what in ipairs(doc.lost) do list[i] = tostring(what) end
  core.log("warn", ("the file of the model lacks what had no name (tm.models.register): %s; compile the model again "
    .. "with it, as in model:compile{ optimizer = model.optimizer, loss = ... }"):format(table.concat(list, ", ")))
end

--- The model of a description, compiled when it was and `with_compile`; reader: the
--- checkpoint's.
function M.model(doc, reader, custom, with_compile)
  local ctx = setmetatable({ doc = doc, reader = reader, custom = custom, made = {}, made_variables = {},
    where = "the file" }, Context)
  if type(doc.root) ~= "number" then codec.bad(ctx, "no root") end
  local ok, model = pcall(ctx.layer, ctx, doc.root)
  if not ok and not errors.is_error(model) then -- what a class does with a strange configuration
    errors.raise("data_loss", "%s cannot be made again: %s", ctx.where, tostring(model))
  end
  if not ok then error(model, 0) end
  if not registry.is_a(model, tm.Model) then errors.raise("data_loss", "the root of the file is no model") end
  if doc.compile and with_compile then
    compile(ctx, model)
    warn(doc)
  end
  return model
end

return M
