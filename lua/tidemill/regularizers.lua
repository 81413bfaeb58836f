--- Regularizers: a penalty for a weight, added to the losses of its layer.

local class = require "tidemill.lib.class"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

local M = {}

local Regularizer = class.new("Regularizer")

--- The penalty of a weight, a scalar.
function Regularizer.__call(self, x)
  x = tm.identity(x)
  local sum
  if self.l1 > 0 then sum = self.l1 * tm.reduce_sum(tm.abs(x)) end
  if self.l2 > 0 then
    local squares = self.l2 * tm.reduce_sum(tm.square(x))
    sum = sum and sum + squares or squares
  end
  return sum or tm.zeros({}, x.dtype)
end

local function factors(where, given, first, defaults)
  if type(given) == "number" then given = { [first] = given } end
  local o = options.read(where, given, defaults)
  options.number(where, "l1", o.l1 or 0, 0)
  options.number(where, "l2", o.l2 or 0, 0)
  return o.l1 or 0, o.l2 or 0
end

M.Regularizer = Regularizer

--- l1 * sum(|x|): L1(0.01) or L1{ l1 = 0.01 }.
M.L1 = Regularizer:extend("L1")
function M.L1:init(l1) self.l1, self.l2 = factors("L1", l1, "l1", { l1 = 0.01 }) end

--- l2 * sum(x^2): L2(0.01) or L2{ l2 = 0.01 }.
M.L2 = Regularizer:extend("L2")
function M.L2:init(l2) self.l1, self.l2 = factors("L2", l2, "l2", { l2 = 0.01 }) end

--- Both: L1L2(0.01, 0.01) or L1L2{ l1 = 0.01, l2 = 0.01 }.
M.L1L2 = Regularizer:extend("L1L2")
function M.L1L2:init(l1, l2)
  if type(l1) == "number" then l1 = { l1 = l1, l2 = l2 } end
  self.l1, self.l2 = factors("L1L2", l1, "l1", { l1 = 0, l2 = 0 })
end

--- "l1", "l2", "l1_l2", a function or an object.
M.get = options.getter("regularizer", { L1 = M.L1, L2 = M.L2, L1L2 = M.L1L2 }, { l1_l2 = "L1L2" }, true)

return M
