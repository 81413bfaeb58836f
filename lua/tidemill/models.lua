--- tm.Model, tm.Sequential and tm.Input: layers put together.
---
---     local x = tm.Input{ shape = { 3 } }
---     local model = tm.Model{ inputs = x, outputs = tm.layers.Dense{ units = 1 }(x) }
---     model(batch, { training = true })
---
--- A model is a layer, so it may stand in another one.

local Layer = require "tidemill.layers.base"
local batches = require "tidemill.fit.batches"
local class = require "tidemill.lib.class"
local compile = require "tidemill.fit.compile"
local errors = require "tidemill.errors"
local logs = require "tidemill.fit.logs"
local loop = require "tidemill.fit.loop"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local steps = require "tidemill.fit.steps"
local symbol = require "tidemill.layers.symbol"
local summary = require "tidemill.layers.summary"
local tm = require "tidemill.lib.lazy"
local values = require "tidemill.lib.values"

local M = {}

---@class tm.Model : tm.layers.Layer
---@field layers tm.layers.Layer[]
local Model = Layer:extend("Model")
M.Model = Model

local function all_symbols(where, x)
  local flat = nest.flatten(x)
  for i, s in ipairs(flat) do
    if not symbol.is(s) then
      errors.raise("invalid_argument", "Model: %s[%d] is no tm.Input nor made of one", where, i)
    end
  end
  return flat
end

--- Model{ inputs, outputs, name }: symbols, or structures of them.  Classes derived by
--- Model:extend have their own `init` and `call`.
function Model:init(given)
  local o = self:options(given, { "inputs", "outputs" })
  if o.inputs == nil and o.outputs == nil and self.call ~= Model.call then return end
  if o.inputs == nil or o.outputs == nil then
    errors.raise("invalid_argument", "Model needs inputs and outputs; a class of your own needs a method call")
  end
  rawset(self, "inputs", o.inputs)
  rawset(self, "outputs", o.outputs)
  rawset(self, "_inputs", all_symbols("inputs", o.inputs))
  rawset(self, "_nodes", symbol.graph(self._inputs, all_symbols("outputs", o.outputs)))
  rawset(self, "built", true)
end

--- A functional model holds the layers of its nodes, and variables that its ops use.
function Model:tracked()
  local found = Layer.tracked(self)
  local nodes = rawget(self, "_nodes")
  if not nodes then return found end
  local seen = {}
  for _, node in ipairs(nodes) do
    local l = node.layer
    if l and not seen[l] then
      seen[l] = true
      found.layers[#found.layers + 1] = l
    elseif not l then
      for _, v in ipairs(symbol.variables_of(node)) do found.variables[#found.variables + 1] = v end
    end
  end
  return found
end

function Model.get:layers() return self:tracked().layers end

--- All variables in Keras's order: layer by layer, then the model's own; each layer's
--- trainable ones first.
function Model.get:weights()
  local all, seen = {}, {}
  local function add(v)
    if not seen[v] then
      seen[v] = true
      all[#all + 1] = v
    end
  end
  for _, l in ipairs(self.layers) do
    for _, v in ipairs(l.weights) do add(v) end
  end
  for _, v in ipairs(Layer.get.weights(self)) do add(v) end
  return all
end
Model.get.variables = Model.get.weights

--- Layer by name or position.
function Model:get_layer(which)
  for i, l in ipairs(self.layers) do
    if i == which or l.name == which then return l end
  end
  return errors.raise("not_found", 'the model "%s" has no layer %s', self.name, tostring(which))
end

--- A value as an input wants it: a last axis of size one may be missing, or be there too
--- much, as in Keras.
local function conform(s, x)
  if not values.is_tensor(x) then return x end
  local more = #s.shape - #x.shape
  if more == 1 and s.shape[#s.shape] == 1 and #x.shape > 0 then return tm.expand_dims(x, -1) end
  if more == -1 and x.shape[#x.shape] == 1 then return tm.squeeze(x, -1) end
  return x
end

--- Put the given values beside the model's inputs: a value, a list, or a table by the
--- names of the inputs.
local function bind(self, x)
  local inputs, env = self._inputs, {}
  local by_name = nest.is_nested(x) and x[1] == nil and next(x) ~= nil
  if by_name and (not nest.is_nested(self.inputs) or self.inputs[1] ~= nil) then
    for _, s in ipairs(inputs) do
      env[s] = x[s.name]
      if env[s] == nil then
        errors.raise("invalid_argument", '%s: the input "%s" is missing', self.name, s.name)
      end
      env[s] = conform(s, env[s])
    end
    return env
  end
  if by_name and self.inputs[1] == nil then
    local wanted = {}
    for _, k in ipairs(nest.keys(self.inputs)) do
      if x[k] == nil then errors.raise("invalid_argument", '%s: the input "%s" is missing', self.name, k) end
      wanted[k] = x[k]
    end
    x = wanted
  end
  local flat = nest.flatten(x)
  if #flat ~= #inputs then
    errors.raise("invalid_argument", "%s takes %d inputs, got %d", self.name, #inputs, #flat)
  end
  for i, s in ipairs(inputs) do env[s] = conform(s, flat[i]) end
  return env
end

function Model:call(x, training)
  if not rawget(self, "_nodes") then
    errors.raise("unimplemented", "%s has no method call(x, training)", self.class_name)
  end
  local env = bind(self, x)
  for _, node in ipairs(self._nodes) do symbol.run_node(node, env, training) end
  for _, w in ipairs(rawget(self, "_watched") or {}) do w.fn(env[w.symbol]) end
  return nest.map(function(s) return env[s] end, self.outputs)
end

--- Let fn(value) see a symbol of this functional model at each call.
local function watch(self, where, x, name, fn)
  if not rawget(self, "_nodes") then
    errors.raise("invalid_argument", "%s: symbols belong to functional models; %s calls it in its method call", where,
      self.class_name)
  end
  local ends = all_symbols("outputs", self.outputs)
  rawset(self, "_extra", rawget(self, "_extra") or {})
  self._extra[#self._extra + 1] = x
  for _, s in ipairs(self._extra) do ends[#ends + 1] = s end
  rawset(self, "_nodes", symbol.graph(self._inputs, ends))
  rawset(self, "_watched", rawget(self, "_watched") or {})
  self._watched[#self._watched + 1] = { where = where, symbol = x, name = name, fn = fn }
end

--- Add a scalar to the loss: a value in `call`, a symbol of a functional model, or a
--- function that computes it from variables.
function Model:add_loss(x)
  if not symbol.is(x) then return Layer.add_loss(self, x) end
  watch(self, "add_loss", x, nil, function(value) Layer.add_loss(self, value) end)
end

--- Let a Mean of this name follow a value in `call`, or a symbol of a functional model.
function Model:add_metric(x, name)
  if not symbol.is(x) then return Layer.add_metric(self, x, name) end
  watch(self, "add_metric", x, name, function(value) Layer.add_metric(self, value, name) end)
end

--- Print layers, shapes and numbers of weights; `print_fn` may take the lines.
function Model:summary(given) return summary.print(self, given) end

--- Files of weights and models (tidemill.models.*).
function Model:save_weights(path) return require("tidemill.models.weights").save(self, path) end

function Model:load_weights(path, given) return require("tidemill.models.weights").load(self, path, given) end

--- Write model, weights and optimizer as a directory: the path, or nil and why not.
function Model:save(path, given) return require("tidemill.models.saving").save(self, path, given) end

--- Write what predicts: the graph and the weights; the path, or nil and why not.
function Model:export(path) return require("tidemill.models.saving").export(self, path) end

--- A model of classes that are known here, or nil and why not.
function M.load(path, given) return require("tidemill.models.saving").load(path, given) end

--- Make a class or function of your own known to saved models.
M.register = require("tidemill.models.registry").register

-- --- training (tidemill.fit) ---

for name, fn in pairs(steps.methods) do Model[name] = fn end

local function check_self(self, name)
  if class.is(self, Model) then return end
  errors.raise("invalid_argument", "%s is a method: call it with a colon, as in model:%s(...)", name, name)
end

--- compile{ optimizer, loss, metrics, loss_weights, weighted_metrics, steps_per_execution,
--- pss_evaluation_shards, run_eagerly }
function Model:compile(given)
  check_self(self, "compile")
  compile.compile(self, given)
end

--- fit(x, { y, epochs, steps_per_epoch, batch_size, callbacks, validation_data, ... })
---@return tm.History
function Model:fit(x, given)
  check_self(self, "fit")
  return loop.fit(self, x, given)
end

--- evaluate(x, { y, sample_weight, batch_size, steps, callbacks }): results by name.
function Model:evaluate(x, given)
  check_self(self, "evaluate")
  return loop.evaluate(self, x, given)
end

--- predict(x, { batch_size, steps, callbacks }): the outputs of all batches, joined.
function Model:predict(x, given)
  check_self(self, "predict")
  return loop.predict(self, x, given)
end

--- One step on one batch; { sample_weight, class_weight, reset_metrics }: the logs.
function Model:train_on_batch(x, y, given) return batches.run(self, "train", x, y, given) end

--- One step of evaluation on one batch: the results by name.
function Model:test_on_batch(x, y, given) return batches.run(self, "test", x, y, given) end

--- The outputs of one batch.
function Model:predict_on_batch(x) return batches.predict(self, x) end

--- Set losses and metrics back to the start, as each epoch does.
function Model:reset_metrics() logs.reset(self) end

--- Loss and metrics of compile, then those of layers and fields.
function Model.get:metrics()
  local own, c = Layer.get.metrics(self), rawget(self, "_compiled")
  if not c then return own end
  local out, seen = {}, {}
  for _, list in ipairs { c.all, own } do
    for _, m in ipairs(list) do
      if not seen[m] then seen[m], out[#out + 1] = true, m end
    end
  end
  return out
end

--- Their names, in the order in which they are shown.
function Model.get:metrics_names()
  local names = {}
  for i, m in ipairs(self.metrics) do names[i] = m.name end
  return names
end

---@class tm.Sequential : tm.Model
local Sequential = Model:extend("Sequential")
M.Sequential = Sequential

--- Sequential{ layer, layer, name = ... }.  It is built at once when the first layer
--- has an input_shape, or when a tm.Input stands first.
function Sequential:init(given)
  local list, rest = {}, {}
  for k, v in pairs(given or {}) do
    if type(k) == "number" then list[k] = v else rest[k] = v end
  end
  self:options(rest, {})
  rawset(self, "_stack", {})
  for _, l in ipairs(list) do self:add(l) end
end

--- Append a layer.
function Sequential:add(layer)
  local stack = self._stack
  if symbol.is(layer) then
    if #stack > 0 or rawget(self, "outputs") then
      errors.raise("invalid_argument", "Sequential: tm.Input can only stand first")
    end
    rawset(self, "inputs", layer)
    rawset(self, "outputs", layer)
    return
  end
  if not class.is(layer, Layer) then
    errors.raise("invalid_argument", "Sequential: entry %d is no layer but %s", #stack + 1, kinds.a(layer))
  end
  stack[#stack + 1] = layer
  if #stack == 1 and not rawget(self, "outputs") and layer.input_shape then
    local x = symbol.input { shape = layer.input_shape, dtype = layer.input_dtype or layer.dtype }
    rawset(self, "inputs", x)
    rawset(self, "outputs", x)
  end
  if rawget(self, "outputs") then
    rawset(self, "outputs", layer(self.outputs))
    rawset(self, "built", true)
  end
end

function Sequential:tracked()
  local found = Layer.tracked(self)
  for _, l in ipairs(self._stack) do found.layers[#found.layers + 1] = l end
  return found
end

function Sequential:call(x, training)
  local input = rawget(self, "inputs")
  if input then x = conform(input, x) end
  for _, l in ipairs(self._stack) do x = l(x, { training = training }) end
  return x
end

M.Input = symbol.input

return M
