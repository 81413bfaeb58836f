--- tm.losses: how far predictions are from targets.
---
---     local bce = tm.losses.BinaryCrossentropy{ reduction = "none" }
---     local loss = bce(y_true, y_pred, sample_weight)
---
--- Each is also a function: tm.losses.binary_crossentropy(y_true, y_pred, options), one
--- number an example.  Numbers are tf-keras's.

local activations = require "tidemill.activations"
local align = require "tidemill.lib.align"
local class = require "tidemill.lib.class"
local closed = require "tidemill.lib.closed"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local trace = require "tidemill.trace"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local EPSILON = 1e-7

local reductions = { none = true, sum = true, sum_over_batch_size = true }

---@class tm.losses.Loss
local Loss = class.new("Loss")
M.Loss = Loss

local common = { reduction = "sum_over_batch_size" }

--- The common options and the loss's own, checked.
function Loss:options(given, known)
  local all = { "name", reduction = common.reduction }
  for k, v in pairs(known or {}) do
    if type(k) == "number" then all[#all + 1] = v else all[k] = v end
  end
  local o = options.read(self.class_name, given, all)
  options.name(self.class_name, o.name)
  options.flags(self.class_name, known, o)
  if not reductions[o.reduction] then
    options.unknown(self.class_name, "reduction", o.reduction, { "none", "sum", "sum_over_batch_size" })
  end
  return o
end

function Loss:init(given)
  local o = self:options(given)
  self.reduction, self.name = o.reduction, o.name or options.snake(self.class_name)
end

--- One number an example; classes of your own override it.
function Loss:call()
  errors.raise("unimplemented", "%s has no method call(y_true, y_pred)", self.class_name)
end

local function reduce(losses, reduction)
  if reduction == "none" then return losses end
  if reduction == "sum" then return tm.reduce_sum(losses) end
  return tm.reduce_mean(losses)
end

--- loss(y_true, y_pred, sample_weight)
function Loss.__call(self, y_true, y_pred, sample_weight)
  if y_true == nil or y_pred == nil then
    errors.raise("invalid_argument", "%s takes (y_true, y_pred)", self.name or self.class_name)
  end
  return trace.named(self.name or options.snake(self.class_name), function()
    local losses = self:call(y_true, y_pred)
    if sample_weight ~= nil then losses = losses * align.weights(sample_weight, losses) end
    return reduce(losses, self.reduction)
  end)
end

-- --- the functions ---

--- Both as tensors, y_true in the dtype of y_pred.  The link from a probability to its
--- logits hangs on the value, so y_pred stays the same object unless it is squeezed.
local function prepare(y_true, y_pred)
  y_pred = values.tensor(y_pred, "float32")
  y_true = values.cast(values.tensor(y_true, y_pred.dtype), y_pred.dtype)
  return y_true, y_pred
end

local function mean_last(x) return #x.shape == 0 and x or tm.reduce_mean(x, -1) end

local function sum_last(x) return #x.shape == 0 and x or tm.reduce_sum(x, -1) end

local function smooth_binary(y, by) return by == 0 and y or y * (1 - by) + 0.5 * by end

local functions = {}

function functions.binary_crossentropy(y_true, y_pred, o)
  y_true = smooth_binary(y_true, o.label_smoothing)
  local logits = o.from_logits and y_pred or activations.logits(y_pred, "sigmoid")
  if logits then return mean_last(tm.nn.sigmoid_cross_entropy_with_logits(y_true, logits)) end
  local p = tm.clip_by_value(y_pred, EPSILON, 1 - EPSILON)
  return mean_last(-(y_true * tm.log(p + EPSILON) + (1 - y_true) * tm.log(1 - p + EPSILON)))
end

function functions.categorical_crossentropy(y_true, y_pred, o)
  if o.label_smoothing ~= 0 then
    y_true = y_true * (1 - o.label_smoothing) + o.label_smoothing / y_pred.shape[#y_pred.shape]
  end
  local logits = o.from_logits and y_pred or activations.logits(y_pred, "softmax")
  if logits then return tm.nn.softmax_cross_entropy_with_logits(y_true, logits) end
  local p = y_pred / tm.reduce_sum(y_pred, -1, { keepdims = true })
  return -sum_last(y_true * tm.log(tm.clip_by_value(p, EPSILON, 1 - EPSILON)))
end

function functions.sparse_categorical_crossentropy(y_true, y_pred, o)
  local logits = o.from_logits and y_pred or activations.logits(y_pred, "softmax")
  logits = logits or tm.log(tm.clip_by_value(y_pred, EPSILON, 1 - EPSILON))
  return tm.nn.sparse_softmax_cross_entropy_with_logits(align.class_ids(y_true, y_pred), logits)
end

function functions.mean_squared_error(y_true, y_pred) return mean_last(tm.square(y_pred - y_true)) end

function functions.mean_absolute_error(y_true, y_pred) return mean_last(tm.abs(y_pred - y_true)) end

function functions.mean_absolute_percentage_error(y_true, y_pred)
  return 100 * mean_last(tm.abs((y_true - y_pred) / tm.maximum(tm.abs(y_true), EPSILON)))
end

function functions.mean_squared_logarithmic_error(y_true, y_pred)
  local a = tm.log(tm.maximum(y_pred, EPSILON) + 1)
  local b = tm.log(tm.maximum(y_true, EPSILON) + 1)
  return mean_last(tm.square(a - b))
end

function functions.huber(y_true, y_pred, o)
  local e = tm.abs(y_pred - y_true)
  local square, line = 0.5 * tm.square(e), o.delta * e - 0.5 * o.delta * o.delta
  return mean_last(tm.where(tm.less_equal(e, o.delta), square, line))
end

function functions.log_cosh(y_true, y_pred)
  local x = y_pred - y_true
  return mean_last(x + tm.nn.softplus(-2 * x) - math.log(2))
end

--- Targets 0 and 1 are taken for -1 and 1 when there are no others.
local function signs(y_true)
  local binary = tm.reduce_all(tm.logical_or(tm.equal(y_true, 0), tm.equal(y_true, 1)))
  return tm.where(binary, 2 * y_true - 1, y_true)
end

function functions.hinge(y_true, y_pred) return mean_last(tm.maximum(1 - signs(y_true) * y_pred, 0)) end

function functions.squared_hinge(y_true, y_pred)
  return mean_last(tm.square(tm.maximum(1 - signs(y_true) * y_pred, 0)))
end

function functions.kl_divergence(y_true, y_pred)
  y_true, y_pred = tm.clip_by_value(y_true, EPSILON, 1), tm.clip_by_value(y_pred, EPSILON, 1)
  return sum_last(y_true * tm.log(y_true / y_pred))
end

function functions.poisson(y_true, y_pred) return mean_last(y_pred - y_true * tm.log(y_pred + EPSILON)) end

local function unit(x)
  local squares = tm.reduce_sum(tm.square(x), -1, { keepdims = true })
  return x * tm.rsqrt(tm.maximum(squares, 1e-12))
end

function functions.cosine_similarity(y_true, y_pred) return -sum_last(unit(y_true) * unit(y_pred)) end

-- --- the classes ---

--- Integer class ids keep their dtype: a float32 cannot tell large ones apart.
local keeps_labels = { sparse_categorical_crossentropy = true }

local function run(name, y_true, y_pred, o, aligned)
  if keeps_labels[name] then
    y_pred = values.tensor(y_pred, "float32")
    return functions[name](values.tensor(y_true, "int64"), y_pred, o)
  end
  y_true, y_pred = prepare(y_true, y_pred)
  if aligned then
    local before = y_pred
    y_true, y_pred = align.pair(y_true, y_pred)
    local logits = not rawequal(y_pred, before) and activations.logits(before, "sigmoid")
    if logits then activations.link(y_pred, "sigmoid", tm.squeeze(logits, -1)) end
  end
  return functions[name](y_true, y_pred, o)
end

local function define(name, known)
  local snake = options.snake(name)
  if name == "KLDivergence" then snake = "kl_divergence" end
  local c = Loss:extend(name)
  function c:init(given)
    local o = self:options(given, known)
    if o.label_smoothing ~= nil then options.number(name, "label_smoothing", o.label_smoothing, 0, 1) end
    self.reduction, self.name = o.reduction, o.name or snake
    rawset(self, "_options", o)
  end
  function c:call(y_true, y_pred) return run(snake, y_true, y_pred, self._options, true) end
  M[name] = c
  M[snake] = function(y_true, y_pred, given)
    return run(snake, y_true, y_pred, options.read(snake, given, known or {}), false)
  end
end

define("BinaryCrossentropy", { from_logits = false, label_smoothing = 0 })
define("CategoricalCrossentropy", { from_logits = false, label_smoothing = 0 })
define("SparseCategoricalCrossentropy", { from_logits = false })
define("MeanSquaredError")
define("MeanAbsoluteError")
define("MeanAbsolutePercentageError")
define("MeanSquaredLogarithmicError")
define("Huber", { delta = 1 })
define("LogCosh")
define("Hinge")
define("SquaredHinge")
define("KLDivergence")
define("Poisson")
define("CosineSimilarity")

local classes = {}
for name, c in pairs(M) do
  if type(name) == "string" and type(c) == "table" and name ~= "Loss" then classes[name] = c end
end

--- "mse", "binary_crossentropy", a function or an object.
M.get = options.getter("loss", classes, {
  mse = "MeanSquaredError", mae = "MeanAbsoluteError", mape = "MeanAbsolutePercentageError",
  msle = "MeanSquaredLogarithmicError", bce = "BinaryCrossentropy", huber_loss = "Huber",
  kl_divergence = "KLDivergence", kld = "KLDivergence", logcosh = "LogCosh",
})

return closed.list(M, "loss")
