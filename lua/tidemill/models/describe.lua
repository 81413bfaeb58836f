--- A model as plain tables: what model.json of a saved model says.
---
---     { format, version, root, layers = { entry ... }, variables = { spec ... }, compile, lost }
---
--- An entry has `class` and `config` (what the class is called with), and besides
---   graph   of a functional model: nodes in order, each with its arguments
---   stack   of a tm.Sequential: ids of its layers, and its `input`
---   built   what it was first called with, so that it can be built again
---   adapted tensors of the checkpoint that adapt() made
--- Layers are told by their ids, so a layer that is used twice is one layer again.

local class = require "tidemill.lib.class"
local codec = require "tidemill.models.codec"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local registry = require "tidemill.models.registry"
local tree = require "tidemill.train.tree"
local tm = require "tidemill.lib.lazy"

local M = { FORMAT = "tidemill model", VERSION = 1 }

---@class tm.models.Describer
local Context = {}
Context.__index = Context

local function label(l) return ('layer "%s" (%s)'):format(l.name, l.class_name) end

--- The tensors of a checkpoint of `root`: by variable, and by layer and key of what was
--- adapted.
function M.tensors_of(root)
  local by_variable, adapted = {}, {}
  for _, l in ipairs(tree.walk(root).leaves) do
    if l.kind == "variable" then
      by_variable[l.variable] = l.name
    elseif l.kind == "adapted" then
      adapted[l.layer] = adapted[l.layer] or {}
      if l.layer:get_adapted(l.key) then adapted[l.layer][l.key] = l.name end
    end
  end
  return by_variable, adapted
end

function Context:variable(v)
  local id = self.variable_ids[v]
  if not id then
    id = #self.variables + 1
    self.variable_ids[v] = id
    self.variables[id] = { name = v.name, shape = v.shape, dtype = v.dtype, trainable = v.trainable }
  end
  return { ["$"] = "variable", id = id }
end

function Context:symbol(s)
  local at = self.symbols and self.symbols[s]
  if not at then errors.raise("invalid_argument", "%s holds a tm.Input of another model", self.where) end
  return { ["$"] = "symbol", node = at[1], out = at[2] }
end

-- --- functional models ---

-- What v:read() and the like record: the variable is a number there.
local hidden_state = { "variable$", "_rows$", "^read_slot", "^apply_optimizer" }

local function check_op(ctx, node)
  local info = core.op_info(node.name)
  for _, pattern in ipairs(info and info.hidden and hidden_state or {}) do
    if node.name:match(pattern) then
      errors.raise("invalid_argument", "%s: a method of a variable with a tm.Input (%s) cannot be saved; use "
        .. "tm.gather(v, ids), or a layer of your own", ctx.where, node.name)
    end
  end
end

local function node_entry(ctx, node)
  if node.is_input then
    local s = node.outputs[1]
    return { kind = "input", name = node.name, shape = s.shape, dtype = s.dtype }
  end
  if node.kind == "op" then check_op(ctx, node) end
  return { kind = node.kind, name = node.name, layer = node.layer and ctx:layer(node.layer).id,
    training = node.training, args = codec.encode(ctx, node.args) }
end

local function watched(ctx, model)
  local list = {}
  for i, w in ipairs(rawget(model, "_watched") or {}) do
    list[i] = { where = w.where, name = w.name, symbol = ctx:symbol(w.symbol) }
  end
  return list
end

local function graph_entry(ctx, model)
  local before, nodes = ctx.symbols, {}
  ctx.symbols = {}
  local function add(node, entry)
    nodes[#nodes + 1] = entry
    for k, s in ipairs(node.outputs) do ctx.symbols[s] = { #nodes, k } end
  end
  for _, s in ipairs(model._inputs) do
    nodes[#nodes + 1] = { kind = "input", name = s.name, shape = s.shape, dtype = s.dtype }
    ctx.symbols[s] = { #nodes, 1 }
  end
  for _, node in ipairs(model._nodes) do add(node, node_entry(ctx, node)) end
  local entry = { nodes = nodes, inputs = codec.encode(ctx, model.inputs),
    outputs = codec.encode(ctx, model.outputs), watched = watched(ctx, model) }
  ctx.symbols = before
  return entry
end

-- --- layers ---

local function class_of(ctx, l)
  local name = registry.name_of(getmetatable(l), ctx.custom)
  if name then return name end
  return errors.raise("invalid_argument", "%s is of a class that a file cannot hold; tm.models.register(%s) makes it "
    .. "known, before it is saved and before it is loaded", label(l), l.class_name)
end

local function input_of(s)
  return s and { name = s.name, shape = s.shape, dtype = s.dtype } or nil
end

local function stack_entry(ctx, model, entry)
  entry.stack = {}
  for i, l in ipairs(model._stack) do entry.stack[i] = ctx:layer(l).id end
  local input = rawget(model, "inputs")
  entry.input = input and input_of(input)
end

local function config_entry(ctx, l)
  local config = {}
  for k, v in pairs(codec.config_of(l)) do config[k] = v end
  if not l.adapted_in_config then
    for _, key in ipairs(l.adapted or {}) do config[key] = nil end
  end
  return codec.encode(ctx, config)
end

local function fill(ctx, l, entry)
  ctx.where = label(l)
  entry.name, entry.trainable, entry.dtype = l.name, l.trainable, l.dtype
  entry.class = class_of(ctx, l)
  if rawget(l, "_nodes") then
    entry.graph = graph_entry(ctx, l)
  elseif class.is(l, tm.Sequential) then
    stack_entry(ctx, l, entry)
  else
    entry.config = config_entry(ctx, l)
  end
  ctx.where = label(l)
  local from = rawget(l, "_built_from")
  if from and class.is(l, tm.Model) then entry.built = codec.encode(ctx, from) end
  local adapted = ctx.adapted[l]
  if adapted and next(adapted) then entry.adapted = adapted end
  for _, r in ipairs(l._regularized) do
    if r[2] == nil then ctx.left[#ctx.left + 1] = label(l) .. ": a function of add_loss" end
  end
end

function Context:layer(l)
  local id = self.layer_ids[l]
  if not id then
    id = #self.layers + 1
    self.layer_ids[l], self.layers[id] = id, {}
    local where = self.where
    fill(self, l, self.layers[id])
    self.where = where
  end
  return { ["$"] = "layer", id = id }
end

-- --- what compile was given ---

local function compile_entry(ctx, model)
  local compiled = rawget(model, "_compiled")
  if not compiled then return nil end
  ctx.lost = {}
  local out = {}
  for k, v in pairs(compiled.given) do
    ctx.where = "compile: " .. k
    if k == "optimizer" then v = model.optimizer end
    out[k] = codec.encode(ctx, v)
  end
  for _, what in ipairs(ctx.lost) do ctx.left[#ctx.left + 1] = what end
  ctx.lost = nil
  return out
end

--- A context for what is saved of `root` = { model, optimizer }.
function M.context(root, custom)
  local by_variable, adapted = M.tensors_of(root)
  return setmetatable({ where = "the model", custom = custom, layers = {}, layer_ids = {}, variables = {},
    variable_ids = {}, tensors = by_variable, adapted = adapted, left = {} }, Context)
end

--- Can it be built again from classes, or only from its graph?
function M.has_class(model, custom) return registry.name_of(getmetatable(model), custom) ~= nil end

--- The description of root.model, with its optimizer when root has one.
function M.model(root, custom)
  local ctx = M.context(root, custom)
  local id = ctx:layer(root.model).id
  return { format = M.FORMAT, version = M.VERSION, tidemill = tm.version, root = id, layers = ctx.layers,
    compile = root.optimizer and compile_entry(ctx, root.model) or nil, variables = ctx.variables, lost = ctx.left }
end

return M
