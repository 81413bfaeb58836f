--- Constraints: what a weight is made to satisfy after each step of an optimizer.

local class = require "tidemill.lib.class"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

local M = {}

local EPSILON = 1e-7

local of_variable = setmetatable({}, { __mode = "k" })

local Constraint = class.new("Constraint")
M.Constraint = Constraint

local function norms(w, axis)
  return tm.sqrt(tm.reduce_sum(tm.square(w), axis, { keepdims = true }))
end

--- Columns no longer than max_value.
M.MaxNorm = Constraint:extend("MaxNorm")
function M.MaxNorm:init(o)
  o = options.read("MaxNorm", type(o) == "number" and { max_value = o } or o, { max_value = 2, axis = 1 })
  self.max_value, self.axis = o.max_value, o.axis
end
function M.MaxNorm.__call(self, w)
  w = tm.identity(w)
  local n = norms(w, self.axis)
  return w * (tm.clip_by_value(n, 0, self.max_value) / (n + EPSILON))
end

--- No element below zero.
M.NonNeg = Constraint:extend("NonNeg")
function M.NonNeg.__call(_, w) return tm.nn.relu(tm.identity(w)) end

--- Columns of length one.
M.UnitNorm = Constraint:extend("UnitNorm")
function M.UnitNorm:init(o) self.axis = options.read("UnitNorm", o, { axis = 1 }).axis end
function M.UnitNorm.__call(self, w)
  w = tm.identity(w)
  return w / (norms(w, self.axis) + EPSILON)
end

--- Columns of length min_value to max_value; rate 1 moves all the way.
M.MinMaxNorm = Constraint:extend("MinMaxNorm")
function M.MinMaxNorm:init(o)
  o = options.read("MinMaxNorm", o, { min_value = 0, max_value = 1, rate = 1, axis = 1 })
  self.min_value, self.max_value, self.rate, self.axis = o.min_value, o.max_value, o.rate, o.axis
end
function M.MinMaxNorm.__call(self, w)
  w = tm.identity(w)
  local n = norms(w, self.axis)
  local wanted = self.rate * tm.clip_by_value(n, self.min_value, self.max_value) + (1 - self.rate) * n
  return w * (wanted / (n + EPSILON))
end

--- "max_norm", a function or an object.
M.get = options.getter("constraint", {
  MaxNorm = M.MaxNorm, NonNeg = M.NonNeg, UnitNorm = M.UnitNorm, MinMaxNorm = M.MinMaxNorm,
}, nil, true)

--- Remember a variable's constraint; optimizers ask for it.
function M.attach(variable, constraint) of_variable[variable] = constraint end

function M.of(variable) return of_variable[variable] end

return M
