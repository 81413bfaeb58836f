--- Dense: activation(x kernel + bias) along the last axis.

local Layer = require "tidemill.layers.base"
local options = require "tidemill.lib.options"
local errors = require "tidemill.errors"
local shapes = require "tidemill.lib.shapes"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

---@class tm.layers.Dense : tm.layers.Layer
local Dense = Layer:extend("Dense")

--- Dense{ units, activation, use_bias = true, kernel_initializer = "glorot_uniform",
--- bias_initializer = "zeros", kernel_regularizer, bias_regularizer, ... }
function Dense:init(given)
  local o = self:options(given, {
    "units", "activation", "kernel_regularizer", "bias_regularizer", "kernel_constraint", "bias_constraint",
    use_bias = true, kernel_initializer = "glorot_uniform", bias_initializer = "zeros",
  })
  self.units = options.count("Dense", "units", options.need("Dense", o, "units"), 1)
  self.activation = self:activation_of(o.activation)
  self.use_bias = o.use_bias
  rawset(self, "_options", o)
end

local function check_rank(self, shape)
  if #shape >= 2 and shape[#shape] ~= -1 then return end
  errors.raise("invalid_argument", "%s: the input must be a batch of vectors of known size, got shape %s%s",
    self.name, shapes.text(shape), #shape == 1 and "; tm.expand_dims(x, 1) makes a batch of one vector" or "")
end

function Dense:build(shape)
  local inputs = shape[#shape]
  check_rank(self, shape)
  local o = self._options
  self.kernel = self:add_weight {
    name = "kernel", shape = { inputs, self.units }, initializer = o.kernel_initializer,
    regularizer = o.kernel_regularizer, constraint = o.kernel_constraint,
  }
  if not self.use_bias then return end
  self.bias = self:add_weight {
    name = "bias", shape = { self.units }, initializer = o.bias_initializer,
    regularizer = o.bias_regularizer, constraint = o.bias_constraint,
  }
end

--- matmul of the last axis; axes before it are kept.
local function project(x, kernel, units)
  if #x.shape == 2 then return tm.matmul(x, kernel) end
  local shape = {}
  for i, n in ipairs(x.shape) do shape[i] = n end
  local flat = tm.matmul(tm.reshape(x, { -1, shape[#shape] }), kernel)
  shape[1], shape[#shape] = -1, units
  return tm.reshape(flat, shape)
end

function Dense:call(x)
  local inputs = x.shape[#x.shape]
  if #x.shape < 2 then check_rank(self, x.shape) end
  if inputs ~= self.kernel.shape[1] and inputs ~= -1 then
    errors.raise("invalid_argument", "%s was built for vectors of %d, got %s", self.name, self.kernel.shape[1],
      tostring(inputs))
  end
  local y = project(values.cast(x, self.dtype), self.kernel, self.units)
  if self.use_bias then y = tm.nn.bias_add(y, self.bias) end
  return self.activation(y)
end

return Dense
