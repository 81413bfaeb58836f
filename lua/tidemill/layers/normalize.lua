--- BatchNormalization and LayerNormalization.

local Layer = require "tidemill.layers.base"
local context = require "tidemill.layers.context"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local shapes = require "tidemill.lib.shapes"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

--- Axes as positions from 1 in increasing order.
local function positions(self, axis, rank)
  local out = {}
  for i, a in ipairs(type(axis) == "table" and axis or { axis }) do
    local at = type(a) == "number" and (a < 0 and rank + 1 + a or a) or 0
    if at < 1 or at > rank or at ~= math.floor(at) then
      errors.raise("invalid_argument", "%s: axis %s of an input of %d axes; they count from 1, -1 is the last",
        self.name, tostring(a), rank)
    end
    out[i] = at
  end
  table.sort(out)
  return out
end

--- Sizes of axes, which must be known.
local function sizes(self, shape, axes)
  local out = {}
  for i, a in ipairs(axes) do
    out[i] = shape[a]
    if out[i] == -1 then
      errors.raise("invalid_argument", "%s: the size of axis %d must be known, got shape %s", self.name, a,
        shapes.text(shape))
    end
  end
  return out
end

local COMMON = { "gamma_regularizer", "beta_regularizer", "gamma_constraint", "beta_constraint" }

local function read(self, given, known)
  for _, name in ipairs(COMMON) do known[#known + 1] = name end
  known.epsilon, known.center, known.scale, known.axis = 1e-3, true, true, -1
  known.gamma_initializer, known.beta_initializer = "ones", "zeros"
  local o = self:options(given, known)
  self.epsilon = options.number(self.class_name, "epsilon", o.epsilon, 0)
  self.center = options.flag(self.class_name, "center", o.center)
  self.scale = options.flag(self.class_name, "scale", o.scale)
  self.axis = o.axis
  rawset(self, "_options", o)
  return o
end

local function add_scale_and_offset(self, shape)
  local o = self._options
  if self.scale then
    self.gamma = self:add_weight {
      name = "gamma", shape = shape, initializer = o.gamma_initializer, regularizer = o.gamma_regularizer,
      constraint = o.gamma_constraint,
    }
  end
  if self.center then
    self.beta = self:add_weight {
      name = "beta", shape = shape, initializer = o.beta_initializer, regularizer = o.beta_regularizer,
      constraint = o.beta_constraint,
    }
  end
end

-- --- BatchNormalization ---

--- BatchNormalization{ axis = -1, momentum = 0.99, epsilon = 1e-3, center = true,
--- scale = true, ... }: in training by mean and variance of the batch, else by moving
--- averages of them.  A frozen layer (trainable = false, also of a model around) always
--- takes the averages.
---
--- Each training step takes (1 - momentum) * (average - batch's) off the averages.  It
--- is an addition, so what several workers do adds up, in any order.
---@class tm.layers.BatchNormalization : tm.layers.Layer
M.BatchNormalization = Layer:extend("BatchNormalization")

function M.BatchNormalization:init(given)
  local o = read(self, given, {
    momentum = 0.99, moving_mean_initializer = "zeros", moving_variance_initializer = "ones",
  })
  self.momentum = options.number("BatchNormalization", "momentum", o.momentum)
  if type(o.axis) == "table" and #o.axis ~= 1 then
    errors.raise("unimplemented", "%s: axis is one axis, got a list of %d", self.name, #o.axis)
  end
end

function M.BatchNormalization:build(shape)
  if #shape < 2 then
    errors.raise("invalid_argument", "%s: the input must be a batch, got shape %s", self.name, shapes.text(shape))
  end
  local axes = positions(self, self.axis, #shape)
  local size, o = sizes(self, shape, axes), self._options
  rawset(self, "_axis", axes[1])
  rawset(self, "_rank", #shape)
  add_scale_and_offset(self, size)
  self.moving_mean = self:add_weight {
    name = "moving_mean", shape = size, initializer = o.moving_mean_initializer, trainable = false,
  }
  self.moving_variance = self:add_weight {
    name = "moving_variance", shape = size, initializer = o.moving_variance_initializer, trainable = false,
  }
end

--- The order of axes that brings `axis` to the end, and the one back.
local function to_end(axis, rank)
  local there, back = {}, {}
  for i = 1, rank do
    if i ~= axis then there[#there + 1] = i end
  end
  there[rank] = axis
  for i, a in ipairs(there) do back[a] = i end
  return there, back
end

--- How many values a mean is of: a number, or a tensor where sizes are not known yet.
local function count(x, columns)
  local n = values.count(x.shape) / columns
  for _, size in ipairs(x.shape) do
    if size == -1 then n = tm.reduce_prod(tm.cast(tm.shape_of(x), x.dtype)) / columns end
  end
  return n
end

--- The least or the largest of a number, or a tensor, and 1.
local function with_one(op, n)
  return type(n) == "number" and math[op == "minimum" and "min" or "max"](n, 1) or tm[op](n, 1)
end

--- Move the averages; nothing moves where the batch is empty.  The variance is Keras's:
--- of images (its fused kernel) the estimate of the population's, else the batch's own.
local function move(self, x, mean, variance)
  local n = count(x, mean.shape[1])
  local share = with_one("minimum", n) * (1 - self.momentum)
  if #x.shape == 4 or #x.shape == 5 then variance = variance * (n / with_one("maximum", n - 1)) end
  self.moving_mean:assign_sub((self.moving_mean - mean) * share)
  self.moving_variance:assign_sub((self.moving_variance - variance) * share)
end

local function by_batch(self, x)
  local last = self._axis == self._rank
  local there, back = to_end(self._axis, self._rank)
  local n = self.moving_mean.shape
  local y, mean, variance = core.ops["nn.batch_norm_train"](last and x or tm.transpose(x, there),
    self.scale and self.gamma or tm.ones(n, self.dtype), self.center and self.beta or tm.zeros(n, self.dtype),
    self.epsilon)
  if not context.scratch() then move(self, x, mean, variance) end
  return last and y or tm.transpose(y, back)
end

local function by_averages(self, x)
  local function along(v)
    if self._axis == self._rank then return v end
    local shape = { -1 }
    for i = 2, self._rank - self._axis + 1 do shape[i] = 1 end
    return tm.reshape(v, shape)
  end
  return tm.nn.batch_normalization(x, along(self.moving_mean), along(self.moving_variance),
    self.center and along(self.beta) or nil, self.scale and along(self.gamma) or nil,
    { variance_epsilon = self.epsilon })
end

function M.BatchNormalization:call(x, training)
  if #x.shape ~= self._rank then
    errors.raise("invalid_argument", "%s was built for inputs of %d axes, got shape %s", self.name, self._rank,
      shapes.text(x.shape))
  end
  x = values.cast(x, self.dtype)
  return training and not context.frozen() and by_batch(self, x) or by_averages(self, x)
end

-- --- LayerNormalization ---

--- LayerNormalization{ axis = -1, epsilon = 1e-3, center = true, scale = true, ... }:
--- each example by its own mean and variance along the axis, or a list of axes.
---@class tm.layers.LayerNormalization : tm.layers.Layer
M.LayerNormalization = Layer:extend("LayerNormalization")

function M.LayerNormalization:init(given) read(self, given, {}) end

function M.LayerNormalization:build(shape)
  local axes = positions(self, self.axis, #shape)
  rawset(self, "_axes", axes)
  rawset(self, "_rank", #shape)
  add_scale_and_offset(self, sizes(self, shape, axes))
end

function M.LayerNormalization:call(x)
  if #x.shape ~= self._rank then
    errors.raise("invalid_argument", "%s was built for inputs of %d axes, got shape %s", self.name, self._rank,
      shapes.text(x.shape))
  end
  local shape = {}
  for i = 1, self._rank do shape[i] = 1 end
  local function along(v)
    if v == nil or (#self._axes == 1 and self._axes[1] == self._rank) then return v end
    for i, a in ipairs(self._axes) do shape[a] = v.shape[i] end
    return tm.reshape(v, shape)
  end
  return tm.nn.layer_normalization(values.cast(x, self.dtype), along(self.scale and self.gamma or nil),
    along(self.center and self.beta or nil), { axis = self._axes, epsilon = self.epsilon })
end

return M
