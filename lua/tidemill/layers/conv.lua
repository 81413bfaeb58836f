--- Convolutions: Conv1D, Conv2D, DepthwiseConv2D.  Channels are the last axis.

local Layer = require "tidemill.layers.base"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local shapes = require "tidemill.lib.shapes"
local values = require "tidemill.lib.values"
local windows = require "tidemill.layers.windows"
local tm = require "tidemill.lib.lazy"

local M = {}

local function known_channels(self, shape, rank)
  local n = windows.channels(self, shape, rank)
  if n == -1 then
    errors.raise("invalid_argument", "%s: the number of channels must be known, got shape %s", self.name,
      shapes.text(shape))
  end
  return n
end

--- What all of them take, read into fields.
local function read(self, given, rank, known, paddings)
  for _, name in ipairs { "kernel_size", "data_format", "activation", "bias_regularizer", "bias_constraint" } do
    known[#known + 1] = name
  end
  known.strides, known.padding, known.dilation_rate = 1, "valid", 1
  known.use_bias, known.bias_initializer = true, "zeros"
  local o = self:options(given, known)
  self.kernel_size = windows.sizes(self, "kernel_size", options.need(self.class_name, o, "kernel_size"), rank)
  self.strides = windows.sizes(self, "strides", o.strides, rank)
  self.dilation_rate = windows.sizes(self, "dilation_rate", o.dilation_rate, rank)
  self.padding = windows.padding(self, o.padding, paddings)
  self.data_format = windows.format(self, o.data_format)
  self.activation = self:activation_of(o.activation)
  self.use_bias = options.flag(self.class_name, "use_bias", o.use_bias)
  rawset(self, "_options", o)
  return o
end

local function add_bias(self, n)
  if not self.use_bias then return end
  local o = self._options
  self.bias = self:add_weight {
    name = "bias", shape = { n }, initializer = o.bias_initializer, regularizer = o.bias_regularizer,
    constraint = o.bias_constraint,
  }
end

local function finish(self, y)
  if self.use_bias then y = tm.nn.bias_add(y, self.bias) end
  return self.activation(y)
end

--- The shape of x, checked against the channels that the layer was built for.
local function checked(self, x, rank)
  local n = windows.channels(self, x.shape, rank)
  if n ~= self._channels and n ~= -1 then
    errors.raise("invalid_argument", "%s was built for %d channels, got shape %s", self.name, self._channels,
      shapes.text(x.shape))
  end
  return values.cast(x, self.dtype)
end

local function convolution(name, rank, op, paddings)
  local Conv = Layer:extend(name)

  function Conv:init(given)
    local o = read(self, given, rank, {
      "filters", "kernel_regularizer", "kernel_constraint", groups = 1, kernel_initializer = "glorot_uniform",
    }, paddings)
    self.filters = options.count(name, "filters", options.need(name, o, "filters"), 1)
    self.groups = options.count(name, "groups", o.groups, 1)
    if self.filters % self.groups ~= 0 then
      errors.raise("invalid_argument", "%s: filters (%d) must be a multiple of groups (%d)", self.name, self.filters,
        self.groups)
    end
  end

  function Conv:build(shape)
    local n, o = known_channels(self, shape, rank), self._options
    if n % self.groups ~= 0 then
      errors.raise("invalid_argument", "%s: the input's channels (%d) must be a multiple of groups (%d)", self.name,
        n, self.groups)
    end
    local kernel = {}
    for i, size in ipairs(self.kernel_size) do kernel[i] = size end
    kernel[rank + 1], kernel[rank + 2] = math.floor(n / self.groups), self.filters
    rawset(self, "_channels", n)
    self.kernel = self:add_weight {
      name = "kernel", shape = kernel, initializer = o.kernel_initializer, regularizer = o.kernel_regularizer,
      constraint = o.kernel_constraint,
    }
    add_bias(self, self.filters)
  end

  function Conv:call(x)
    x = checked(self, x, rank)
    local padding = self.padding
    if padding == "causal" then
      local before = self.dilation_rate[1] * (self.kernel_size[1] - 1)
      x, padding = tm.pad(x, { { 0, 0 }, { before, 0 }, { 0, 0 } }), "valid"
    end
    return finish(self, tm.nn[op](x, self.kernel, {
      strides = self.strides, padding = padding, dilations = self.dilation_rate, groups = self.groups,
    }))
  end

  return Conv
end

--- Conv1D{ filters, kernel_size, strides = 1, padding = "valid" | "same" | "causal",
--- dilation_rate = 1, groups = 1, activation, use_bias = true, kernel_initializer, ... }
--- of (batch, steps, channels).
---@class tm.layers.Conv1D : tm.layers.Layer
M.Conv1D = convolution("Conv1D", 1, "conv1d", { "valid", "same", "causal" })

--- Conv2D{ filters, kernel_size, strides = 1, padding = "valid" | "same",
--- dilation_rate = 1, groups = 1, activation, use_bias = true, kernel_initializer, ... }
--- of (batch, height, width, channels); sizes are a number or { height, width }.
---@class tm.layers.Conv2D : tm.layers.Layer
M.Conv2D = convolution("Conv2D", 2, "conv2d", { "valid", "same" })

--- DepthwiseConv2D{ kernel_size, depth_multiplier = 1, strides = 1, padding = "valid",
--- dilation_rate = 1, activation, use_bias = true, depthwise_initializer, ... }: each
--- channel has depth_multiplier filters of its own.
---@class tm.layers.DepthwiseConv2D : tm.layers.Layer
M.DepthwiseConv2D = Layer:extend("DepthwiseConv2D")

function M.DepthwiseConv2D:init(given)
  local o = read(self, given, 2, {
    "depthwise_regularizer", "depthwise_constraint", depth_multiplier = 1, depthwise_initializer = "glorot_uniform",
  }, { "valid", "same" })
  self.depth_multiplier = options.count("DepthwiseConv2D", "depth_multiplier", o.depth_multiplier, 1)
end

function M.DepthwiseConv2D:build(shape)
  local n, o, size = known_channels(self, shape, 2), self._options, self.kernel_size
  rawset(self, "_channels", n)
  self.depthwise_kernel = self:add_weight {
    name = "depthwise_kernel", shape = { size[1], size[2], n, self.depth_multiplier },
    initializer = o.depthwise_initializer, regularizer = o.depthwise_regularizer, constraint = o.depthwise_constraint,
  }
  add_bias(self, n * self.depth_multiplier)
end

function M.DepthwiseConv2D:call(x)
  return finish(self, tm.nn.depthwise_conv2d(checked(self, x, 2), self.depthwise_kernel, {
    strides = self.strides, padding = self.padding, dilations = self.dilation_rate,
  }))
end

return M
