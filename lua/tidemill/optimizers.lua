--- tm.optimizers: SGD, RMSprop, Adagrad, Adadelta, Adam, AdamW, Adamax, Nadam, Ftrl, and
--- schedules of learning rates.
---
--- Defaults are tf-keras's.  Gradients by rows are summed by row, then clipped, and
--- change only the touched rows and their slots.

local Optimizer = require "tidemill.optimizers.base"
local closed = require "tidemill.lib.closed"
local options = require "tidemill.lib.options"

local M = { Optimizer = Optimizer, schedules = require "tidemill.optimizers.schedules" }

local classes = {}

--- An optimizer is its options, and what of them the rule gets, in its order.
local function define(name, known, rule)
  local c = Optimizer:extend(name)
  function c:init(given) self:configure(given, known) end
  function c:rule() return rule(self.options) end
  classes[name], M[name] = c, c
  return c
end

local function flag(x) return x and 1 or 0 end

define("SGD", { learning_rate = 0.01, momentum = 0, nesterov = false }, function(o)
  options.number("SGD", "momentum", o.momentum, 0, 1)
  return "sgd", { o.momentum, flag(o.nesterov) }
end)

define("RMSprop", { learning_rate = 0.001, rho = 0.9, momentum = 0, epsilon = 1e-7, centered = false },
  function(o) return "rmsprop", { o.rho, o.momentum, o.epsilon, flag(o.centered) } end)

define("Adagrad", { learning_rate = 0.001, initial_accumulator_value = 0.1, epsilon = 1e-7 },
  function(o) return "adagrad", { o.epsilon, o.initial_accumulator_value } end)

define("Adam", { learning_rate = 0.001, beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7, amsgrad = false },
  function(o) return "adam", { o.beta_1, o.beta_2, o.epsilon, flag(o.amsgrad) } end)

local AdamW = define("AdamW",
  { learning_rate = 0.001, weight_decay = 0.004, beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7 },
  function(o) return "adamw", { o.beta_1, o.beta_2, o.epsilon, o.weight_decay } end)
AdamW.decays = true

define("Adadelta", { learning_rate = 0.001, rho = 0.95, epsilon = 1e-7 },
  function(o) return "adadelta", { o.rho, o.epsilon } end)

define("Adamax", { learning_rate = 0.001, beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7 },
  function(o) return "adamax", { o.beta_1, o.beta_2, o.epsilon } end)

define("Nadam", { learning_rate = 0.001, beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7 },
  function(o) return "nadam", { o.beta_1, o.beta_2, o.epsilon } end)

define("Ftrl", {
  learning_rate = 0.001, learning_rate_power = -0.5, initial_accumulator_value = 0.1,
  l1_regularization_strength = 0, l2_regularization_strength = 0,
  l2_shrinkage_regularization_strength = 0, beta = 0,
}, function(o)
  return "ftrl", {
    o.learning_rate_power, o.initial_accumulator_value, o.l1_regularization_strength,
    o.l2_regularization_strength, o.l2_shrinkage_regularization_strength, o.beta,
  }
end)

--- "adam", or an optimizer.
M.get = options.getter("optimizer", classes)

return closed.list(M, "optimizer")
