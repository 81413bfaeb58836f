--- Layers that take a list of tensors and make one: Concatenate, Add, Subtract,
--- Multiply, Average, Maximum, Minimum.

local Layer = require "tidemill.layers.base"
local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local tm = require "tidemill.lib.lazy"

local M = {}

local function list_of(self, xs, least)
  if not nest.is_nested(xs) or #xs < least then
    errors.raise("invalid_argument", "%s takes a list of %d or more tensors, as in layer{ a, b }", self.name, least)
  end
  return xs
end

--- Concatenate{ axis = -1 }: axes count from 1, the batch is the first.
---@class tm.layers.Concatenate : tm.layers.Layer
M.Concatenate = Layer:extend("Concatenate")

function M.Concatenate:init(given)
  self.axis = self:options(given, { axis = -1 }).axis
end

function M.Concatenate:call(xs) return tm.concat(list_of(self, xs, 1), self.axis) end

--- Layers that fold their inputs by a function of two.
local function folding(name, step, last)
  local c = Layer:extend(name)
  function c:call(xs)
    list_of(self, xs, 2)
    local out = xs[1]
    for i = 2, #xs do out = step(out, xs[i]) end
    return last and last(out, #xs) or out
  end
  M[name] = c
end

folding("Add", function(a, b) return a + b end)
folding("Multiply", function(a, b) return a * b end)
folding("Average", function(a, b) return a + b end, function(sum, n) return sum / n end)
folding("Maximum", function(a, b) return tm.maximum(a, b) end)
folding("Minimum", function(a, b) return tm.minimum(a, b) end)
folding("Subtract", function(a, b) return a - b end)

return M
