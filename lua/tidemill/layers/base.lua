--- tm.layers.Layer: weights, losses and metrics around a function of tensors.
---
---     local Scale = tm.layers.Layer:extend("Scale")
---     function Scale:build(shape)
---       self.factor = self:add_weight{ name = "factor", shape = { shape[#shape] } }
---     end
---     function Scale:call(x, training) return x * self.factor end
---
--- A layer builds at its first call: its variables are made eagerly, outside any trace,
--- in the strategy scope in which the layer was constructed.  Called with tm.Input
--- symbols it becomes a node of the layer graph (tidemill.layers.symbol).
---
--- Invariants
---   (1) `_own` holds the layer's own variables in the order they were made; a variable
---       is there once.
---   (2) `_losses` holds values of the newest outermost call only.
---   (3) Weights are listed in the order in which fields were set, on every run.

local activations = require "tidemill.activations"
local class = require "tidemill.lib.class"
local constraints = require "tidemill.constraints"
local context = require "tidemill.layers.context"
local errors = require "tidemill.errors"
local initializers = require "tidemill.initializers"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local regularizers = require "tidemill.regularizers"
local nest = require "tidemill.lib.nest"
local symbol = require "tidemill.layers.symbol"
local trace = require "tidemill.trace"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local Layer = class.new("Layer")

local used_names = {}

local function automatic_name(class_name)
  local base = options.snake(class_name)
  local n = used_names[base] or 0
  used_names[base] = n + 1
  return n == 0 and base or ("%s_%d"):format(base, n)
end

--- Options that every layer takes.
Layer.common = { "name", "trainable", "dtype", "input_shape", "activity_regularizer" }

--- The layer's own and the common options, checked.
function Layer:options(given, known)
  local all = {}
  for k, v in pairs(known) do
    if type(k) == "string" then all[k] = v end
  end
  for _, name in ipairs(known) do all[#all + 1] = name end
  for _, name in ipairs(Layer.common) do all[#all + 1] = name end
  local o = options.read(self.class_name, given, all)
  options.flags(self.class_name, known, o)
  rawset(self, "_config", o)
  return o
end

--- What a layer like this one is made with: all options of its class, or what its
--- constructor was given where the class reads that in its own way.
function Layer:get_config()
  local config, o, given = {}, rawget(self, "_config"), self._given
  if not o and given.n > 0 and (given.n > 1 or not nest.is_nested(given[1])) then return { __arguments = given } end
  for k, v in pairs(o or given[1] or {}) do config[k] = v end
  if not o then return config end
  config.name, config.trainable, config.dtype = self.name, self.trainable, self.dtype
  return config
end

function Layer:setup(given)
  local o = type(given) == "table" and getmetatable(given) == nil and given or {}
  options.name(self.class_name, o.name)
  if o.trainable ~= nil then options.flag(self.class_name, "trainable", o.trainable) end
  for k, v in pairs {
    _scope = place.current() or false, _own = {}, _regularized = {}, _losses = {}, _named_metrics = {},
    name = o.name or automatic_name(self.class_name), trainable = o.trainable ~= false,
    dtype = o.dtype or "float32", built = false, input_shape = o.input_shape or false,
    activity_regularizer = regularizers.get(o.activity_regularizer) or false,
  } do
    rawset(self, k, v)
  end
end

function Layer:init(given) Layer.options(self, given, {}) end

function Layer.build() end

function Layer:call()
  errors.raise("unimplemented", "%s has no method call(x, training)", self.class_name)
end

function Layer:__tostring() return ("%s %q"):format(self.class_name, self.name) end

-- --- making weights, losses, metrics ---

--- Add a variable: name, shape, dtype, initializer (default: glorot_uniform, zeros for
--- integers), trainable, regularizer, constraint.
function Layer:add_weight(given)
  local o = options.read("add_weight", given, {
    "name", "initializer", "regularizer", "constraint", "dtype", shape = {}, trainable = true,
  })
  local dtype = o.dtype or self.dtype
  local default = dtype:match "^float" and "glorot_uniform" or "zeros"
  local init = initializers.get(o.initializer or default)
  local name = ("%s/%s"):format(self.name, o.name or "weight_" .. #self._own + 1)
  local v = place.variable(self._scope, init, {
    name = name, shape = o.shape, dtype = dtype, trainable = o.trainable,
  })
  self._own[#self._own + 1] = v
  local penalty = regularizers.get(o.regularizer)
  if penalty then self._regularized[#self._regularized + 1] = { penalty, v } end
  local constraint = constraints.get(o.constraint)
  if constraint then constraints.attach(v, constraint) end
  return v
end

--- Add a scalar to the losses of this call; a function gives one for every call.
function Layer:add_loss(x)
  if type(x) == "function" then
    self._regularized[#self._regularized + 1] = { x }
    return
  end
  if not context.scratch() then self._losses[#self._losses + 1] = x end
end

--- Let a Mean of this name follow x; it is among the layer's metrics.
function Layer:add_metric(x, name)
  if type(name) ~= "string" then
    errors.raise("invalid_argument", "%s: add_metric takes the value and a name", self.class_name)
  end
  local metric = self._named_metrics[name]
  if not metric then
    metric = place.within(self._scope, function() return tm.metrics.Mean { name = name } end)
    self._named_metrics[name] = metric
    self._named_metrics[#self._named_metrics + 1] = metric
  end
  if not context.scratch() then metric:update_state(x) end
end

-- --- what the layer holds ---

local function visit(x, found, seen)
  if type(x) ~= "table" or seen[x] then return end
  seen[x] = true
  if class.is(x, Layer) then
    found.layers[#found.layers + 1] = x
  elseif values.is_metric(x) then
    found.metrics[#found.metrics + 1] = x
  elseif getmetatable(x) == nil then
    for _, k in ipairs(nest.keys(x)) do
      if values.is_variable(x[k]) then
        found.variables[#found.variables + 1] = x[k]
      else
        visit(x[k], found, seen)
      end
    end
  end
end

--- Layers, metrics and variables in the layer's fields, in the order they were set.
function Layer:tracked()
  local found = { layers = {}, metrics = {}, variables = {} }
  local seen, done = { [self] = true }, {}
  for _, key in ipairs(self._fields) do
    local public = type(key) ~= "string" or key:sub(1, 1) ~= "_"
    if public and not done[key] then
      done[key] = true
      visit({ rawget(self, key) }, found, seen)
    end
  end
  for _, m in ipairs(self._named_metrics) do found.metrics[#found.metrics + 1] = m end
  return found
end

local function append(list, seen, v)
  if not seen[v] then
    seen[v] = true
    list[#list + 1] = v
  end
end

--- Walk the layer and what is in it, each once; `frozen` is true below a layer that is
--- not trainable.
function Layer:walk(fn, seen, frozen)
  seen = seen or {}
  if seen[self] then return end
  seen[self] = true
  frozen = frozen or not self.trainable
  local found = self:tracked()
  fn(self, found, frozen)
  for _, l in ipairs(found.layers) do l:walk(fn, seen, frozen) end
end

local function split_weights(self)
  local trainable, rest, seen = {}, {}, {}
  self:walk(function(layer, found, frozen)
    local function add(v)
      if not seen[v] then append(v.trainable and not frozen and trainable or rest, seen, v) end
    end
    for _, v in ipairs(layer._own) do add(v) end
    for _, v in ipairs(found.variables) do add(v) end
  end)
  return trainable, rest
end

function Layer.get:trainable_variables() return (split_weights(self)) end

function Layer.get:non_trainable_variables()
  local _, rest = split_weights(self)
  return rest
end

--- All variables: the trainable ones first.
function Layer.get:weights()
  local all, rest = split_weights(self)
  for _, v in ipairs(rest) do all[#all + 1] = v end
  return all
end

Layer.get.variables = Layer.get.weights
Layer.get.trainable_weights = Layer.get.trainable_variables
Layer.get.non_trainable_weights = Layer.get.non_trainable_variables

--- Penalties of the weights, computed here and now, and what calls added.
function Layer.get:losses()
  local out = {}
  self:walk(function(layer)
    for _, r in ipairs(layer._regularized) do out[#out + 1] = r[1](r[2]) end
    for _, x in ipairs(layer._losses) do out[#out + 1] = x end
  end)
  return out
end

function Layer.get:metrics()
  local out, seen = {}, {}
  self:walk(function(_, found)
    for _, m in ipairs(found.metrics) do append(out, seen, m) end
  end)
  return out
end

--- Number of elements of all weights.
function Layer:count_params()
  local n = 0
  for _, v in ipairs(self.weights) do n = n + values.count(v.shape) end
  return n
end

--- The values of all weights, a list of tensors.
function Layer:get_weights()
  local out = {}
  for i, v in ipairs(self.weights) do out[i] = v:read() end
  return out
end

--- Assign all weights from a list in the order of `weights`.
function Layer:set_weights(list)
  local weights = self.weights
  if type(list) ~= "table" or #list ~= #weights then
    errors.raise("invalid_argument", "%s has %d weights, set_weights got %s", self.name, #weights,
      type(list) == "table" and #list or kinds.a(list))
  end
  for i, v in ipairs(weights) do v:assign(list[i]) end
end

-- --- calling ---

local after_build = {}

local function cut(list, n)
  for i = #list, n + 1, -1 do list[i] = nil end
end

--- What a build has made that an error or Ctrl-C ended is forgotten.
local function begin_build(self)
  local begun = rawget(self, "_begun")
  if not begun then
    rawset(self, "_begun", { #self._own, #self._regularized })
    return
  end
  cut(self._own, begun[1])
  cut(self._regularized, begun[2])
end

--- Build if that was not done: `shape` is the input's (a structure of shapes for a
--- structure of inputs); the first size is -1, the batch.
function Layer:ensure_built(x)
  if self.built then return end
  begin_build(self)
  local shape = nest.map(values.shape_of_input, x)
  rawset(self, "_built_from", nest.map(function(v) return values.spec(values.shape_of_input(v), v.dtype) end, x))
  place.within(self._scope, function() self:build(shape) end)
  rawset(self, "built", true)
  for _, fn in ipairs(after_build) do fn(self) end
end

--- Call fn(layer) whenever a layer has got its variables.
function Layer.after_build(fn) after_build[#after_build + 1] = fn end

local function reset_losses(self)
  self:walk(function(layer) rawset(layer, "_losses", {}) end)
end

--- Shapes of the first call's outputs, for the summary; the batch's size is none of them.
local function note_shapes(self, out)
  local shapes = {}
  for i, t in ipairs(nest.flatten(out)) do
    shapes[i] = {}
    for k, n in ipairs(values.is_tensor(t) and t.shape or {}) do shapes[i][k] = k == 1 and -1 or n end
  end
  rawset(self, "_shapes_out", shapes)
end

--- Inputs are tensors, and one of them where a layer takes one.
local function check_input(self, x)
  if nest.is_nested(x) and self.one_input then
    errors.raise("invalid_argument", "%s takes one tensor, got a table of %d; tm.layers.Concatenate joins some",
      self.name, #nest.keys(x))
  end
  nest.map_path(function(v, path)
    local t = type(v)
    if t == "function" or t == "thread" or t == "boolean" or io.type(v) then
      errors.raise("invalid_argument", "%s: the input%s is a %s, not a tensor", self.name, path, t)
    end
  end, x, "")
end

local function run(self, x, training)
  check_input(self, x)
  self:ensure_built(x)
  local out = self:call(x, training)
  if out == nil then
    errors.raise("invalid_argument", "%s: its method call(x, training) returns nothing", self.name)
  end
  if not rawget(self, "_shapes_out") then note_shapes(self, out) end
  if self.activity_regularizer then
    local first = nest.flatten(out)[1]
    self:add_loss(self.activity_regularizer(first) / tm.cast(tm.shape_of(first)[1], first.dtype))
  end
  return out
end

local function read_training(self, how)
  if how == nil or type(how) == "boolean" then return how end
  if values.is_tensor(how) or values.is_symbol(how) or values.is_variable(how) then
    errors.raise("invalid_argument", "%s: several inputs go in one list, as in layer({ a, b }, { training = true })",
      self.name)
  end
  if type(how) == "table" then
    local training = options.read(self.name, how, { "training" }).training
    if training == nil or type(training) == "boolean" then return training end
  end
  return errors.raise("invalid_argument", "%s: training is true or false, as in layer(x, { training = true })",
    self.name)
end

--- layer(x, { training = true }); x is a tensor or a structure of tensors.
function Layer.__call(self, x, how)
  if x == nil then errors.raise("invalid_argument", "%s is called without an input", self.name) end
  local training = read_training(self, how)
  if values.any(symbol.is, x) then return symbol.apply_layer(self, x, training) end
  x = values.input(x, self.input_dtype)
  if context.depth() == 0 then reset_losses(self) end
  return trace.named(self.name, context.run, training, run, self, x)
end

Layer.activation_of = function(self, x) return activations.get(self.class_name, x) end

return Layer
