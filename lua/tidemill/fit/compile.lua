--- model:compile: the optimizer, losses and metrics of a model, and what Keras makes of
--- their names.
---
--- What was compiled is completed when the first step shows outputs and targets: losses
--- and metrics are spread over the outputs then, "accuracy" becomes the one that fits the
--- shapes, and names get the output's in front where there are several.
---
--- Invariants
---   (1) Metrics are made in the scope of the model, outside of the trace that asks.
---   (2) `all` lists loss, losses of outputs, metrics in the order in which they are shown.

local adopt = require "tidemill.fit.adopt"
local class = require "tidemill.lib.class"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local outputs = require "tidemill.fit.outputs"
local place = require "tidemill.lib.place"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

---@class tm.fit.Compiled
local Compiled = { __name = "tm.fit.Compiled" }
Compiled.__index = Compiled

-- --- metrics by name ---

--- Which of three kinds target and prediction are: binary, sparse or categorical.
local function kind_of(y_true, y_pred)
  local t, p = y_true.shape, y_pred.shape
  if p[#p] == 1 or #p == 0 then return "binary" end
  if #t < #p or (t[#t] == 1 and p[#p] > 1) then return "sparse_categorical" end
  return "categorical"
end

local by_shape = { accuracy = "accuracy", acc = "accuracy", crossentropy = "crossentropy", ce = "crossentropy" }

local accuracies = {
  binary = "BinaryAccuracy", sparse_categorical = "SparseCategoricalAccuracy", categorical = "CategoricalAccuracy",
}

--- The function of the loss of this name, where no metric has it.
local function loss_function(name)
  local fn = rawget(tm.losses, options.snake(name))
  return not tm.metrics.has(name) and type(fn) == "function" and fn or nil
end

local function named(name, y_true, y_pred)
  local how = by_shape[name:lower()]
  if how == "accuracy" then return tm.metrics[accuracies[kind_of(y_true, y_pred)]] { name = name } end
  local fn = how and tm.losses[kind_of(y_true, y_pred) .. "_crossentropy"] or loss_function(name)
  return fn and tm.metrics.MeanOf(fn, { name = name }) or tm.metrics.get(name)
end

--- Raise for a name that is no metric's, before anything is trained.
local function check_names(x, depth)
  class.refuse("compile: a metric", x)
  if nest.is_nested(x) then
    depth = nest.deeper(depth)
    for _, k in ipairs(nest.keys(x)) do check_names(x[k], depth) end
  elseif type(x) == "string" and not (by_shape[x:lower()] or tm.metrics.has(x) or loss_function(x)) then
    tm.metrics.get(x)
  end
end

--- A metric object from a name, an object, a loss or a function(y_true, y_pred).
local function metric_of(x, number, y_true, y_pred)
  class.refuse("compile: a metric", x)
  if type(x) == "string" then return named(x, y_true, y_pred) end
  if values.is_metric(x) or class.is(x, tm.losses.Loss) then return tm.metrics.get(x) end
  options.callable("compile", "a metric", x)
  return tm.metrics.MeanOf(x, { name = "metric_" .. number })
end

-- --- compile ---

local known = {
  "loss", "metrics", "loss_weights", "weighted_metrics", optimizer = "rmsprop", steps_per_execution = 1,
  pss_evaluation_shards = "auto", run_eagerly = false,
}

local function check_shards(n)
  if n == "auto" then return n end
  if type(n) ~= "number" then
    errors.raise("invalid_argument", 'compile: pss_evaluation_shards is a number or "auto", got %s', tostring(n))
  end
  return options.count("compile", "pss_evaluation_shards", n, 0)
end

--- Numbers, or tensors and variables that say how much each output counts.
local function check_loss_weights(x)
  nest.map(function(w)
    if not values.is_tensor(w) and not values.is_variable(w) then
      options.number("compile", "an entry of loss_weights", w)
    end
  end, x)
end

local function optimizer_of(x)
  class.refuse("compile: optimizer", x)
  x = tm.optimizers.get(x)
  if not class.is(x, tm.optimizers.Optimizer) then
    errors.raise("invalid_argument", 'compile: optimizer is a name as "adam" or an optimizer, got %s', kinds.a(x))
  end
  return x
end

--- model:compile{ optimizer, loss, metrics, loss_weights, weighted_metrics,
--- steps_per_execution, pss_evaluation_shards, run_eagerly }
function M.compile(model, given)
  local o = options.read("compile", given, known)
  options.count("compile", "steps_per_execution", o.steps_per_execution, 1)
  options.flag("compile", "run_eagerly", o.run_eagerly)
  check_shards(o.pss_evaluation_shards)
  if o.loss_weights ~= nil then check_loss_weights(o.loss_weights) end
  if rawget(model, "fitting") then
    errors.raise("failed_precondition", 'compile: the model "%s" is in a fit; compile it when that is over', model.name)
  end
  local scope = place.current()
  if scope and scope ~= model._scope then
    errors.raise("failed_precondition", 'compile: the model "%s" was made outside of the strategy scope in which it is '
      .. "compiled: its variables would not be on the cluster; make it in strategy:scope too", model.name)
  end
  check_names(o.metrics)
  check_names(o.weighted_metrics)
  local self = setmetatable({ given = o, model = model, all = {} }, Compiled)
  local function in_scope()
    rawset(model, "optimizer", optimizer_of(o.optimizer))
    self.total = tm.metrics.Mean { name = "loss" }
  end
  place.within(model._scope, in_scope)
  adopt.compiled(model, o)
  self.losses = nest.map(M.loss, o.loss)
  rawset(model, "_compiled", self)
  rawset(model, "_steps", nil)
end

--- A loss object from a name, an object or a function(y_true, y_pred).
function M.loss(x)
  if type(x) == "string" then x = tm.losses.get(x) end
  if class.is(x, tm.losses.Loss) then return x end
  if x == nil then return nil end
  class.refuse("compile: loss", x)
  options.callable("compile", "a loss", x)
  local wrapped = tm.losses.Loss { name = "loss" }
  rawset(wrapped, "call", function(_, y_true, y_pred) return values.tensor(x(y_true, y_pred)) end)
  return wrapped
end

--- Metric objects of one output.
local function metrics_of(list, y_true, y_pred, several)
  if list == nil then return {} end
  if not nest.is_nested(list) then list = { list } end
  local out = {}
  for i, x in ipairs(list) do
    if values.is_metric(x) and several then x = x:copy() end
    out[i] = metric_of(x, i, y_true, y_pred)
  end
  return out
end

-- --- completing ---

--- A list that is for every output: { "mse", "mae" }, not { { "mse" }, { "mae" } }.
local function is_shared(list)
  if not nest.is_nested(list) then return true end
  for k, x in pairs(list) do
    if type(k) ~= "number" or nest.is_nested(x) then return false end
  end
  return true
end

local function spread(self, what, list)
  if list == nil then return {}, false end
  if is_shared(list) then
    local out = {}
    for i = 1, self.outputs.n do out[i] = list end
    return out, self.outputs.n > 1
  end
  return self.outputs:pick(what, list, true), false
end

--- The name of a metric: of its output where there are several, of its own.
local function rename(self, m, output, taken, weighted)
  local prefix = self.outputs.n > 1 and output .. "_" or ""
  local own = rawget(m, "_own_name") or m.name
  local name = prefix .. own
  if weighted and taken[name] then name = prefix .. "weighted_" .. own end
  if taken[name] then
    errors.raise("invalid_argument", 'compile: two metrics have the name "%s"; give one another name, as in '
      .. 'tm.metrics.Mean{ name = "other" }', name)
  end
  taken[name] = true
  rawset(m, "_own_name", own)
  rawset(m, "name", name)
end

local function add_metrics(self, y_true, y_pred)
  local plain, shared = spread(self, "metrics", self.given.metrics)
  local weighted, shared_too = spread(self, "weighted_metrics", self.given.weighted_metrics)
  local taken = { loss = true }
  for i, e in ipairs(self.entries) do
    e.metrics, e.weighted = {}, {}
    if y_true[i] ~= nil then
      e.metrics = metrics_of(plain[i], y_true[i], y_pred[i], shared)
      e.weighted = metrics_of(weighted[i], y_true[i], y_pred[i], shared_too)
    end
    for _, m in ipairs(e.metrics) do rename(self, m, e.name, taken) end
    for _, m in ipairs(e.weighted) do rename(self, m, e.name, taken, true) end
  end
end

local function add_losses(self)
  local losses = self.outputs:pick("loss", self.losses)
  local weights = self.outputs:pick("loss_weights", self.given.loss_weights)
  for i, name in ipairs(self.outputs.names) do
    local e = { name = name, loss = losses[i], factor = weights[i] }
    if e.loss and self.outputs.n > 1 then e.mean = tm.metrics.Mean { name = name .. "_loss" } end
    self.entries[i] = e
  end
end

local function list_all(self)
  self.all = { self.total }
  for _, e in ipairs(self.entries) do self.all[#self.all + 1] = e.mean end
  for _, e in ipairs(self.entries) do
    for _, m in ipairs(e.metrics) do self.all[#self.all + 1] = m end
    for _, m in ipairs(e.weighted) do self.all[#self.all + 1] = m end
  end
end

--- Metrics that the user gave as objects.
local function given_objects(x, out)
  if values.is_metric(x) then
    out[#out + 1] = x
  elseif nest.is_nested(x) then
    for _, k in ipairs(nest.keys(x)) do given_objects(x[k], out) end
  end
  return out
end

--- What is to be set back before the first step, when nothing is complete yet.
function Compiled:early()
  if self.built then return {} end
  return given_objects(self.given.weighted_metrics, given_objects(self.given.metrics, {}))
end

--- Complete what the shapes of the first outputs and targets decide.
function Compiled:build(y_true, y_pred)
  local flat = nest.flatten(y_pred)
  self.outputs = self.outputs or outputs.of(self.model, y_pred)
  self.entries = {}
  local function in_scope()
    add_losses(self)
    add_metrics(self, y_true, flat)
  end
  place.within(self.model._scope, in_scope)
  list_all(self)
  self.built = true
end

--- What was compiled, or failed_precondition.
function M.need(model, where)
  local c = rawget(model, "_compiled")
  if not c then
    errors.raise("failed_precondition", '%s: the model "%s" is not compiled; call model:compile{ optimizer, loss } '
      .. "first", where, model.name)
  end
  return c
end

return M
