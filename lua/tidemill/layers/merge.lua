--- Layers that take a list of tensors and make one: Concatenate, Add, Subtract,
--- Multiply, Average, Maximum, Minimum, Dot.

local Layer = require "tidemill.layers.base"
local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
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

--- Dot{ axes, normalize = false }: the sums of products of two tensors over an axis of
--- each, one a sample: axes is a position, or a list of two (the batch is 1).
---@class tm.layers.Dot : tm.layers.Layer
M.Dot = Layer:extend("Dot")

function M.Dot:init(given)
  local o = self:options(given, { "axes", normalize = false })
  self.axes, self.normalize = options.need("Dot", o, "axes"), options.flag("Dot", "normalize", o.normalize)
end

--- The position of an axis, its letter in the equation.
local function axis_of(self, k, x)
  local axis = type(self.axes) == "table" and self.axes[k] or self.axes
  if type(axis) == "number" and axis < 0 then axis = axis + #x.shape + 1 end
  if type(axis) ~= "number" or axis % 1 ~= 0 or axis < 2 or axis > #x.shape then
    errors.raise("invalid_argument", "%s: axes must be positions from 2 (the batch is 1) to %d for input %d, got %s",
      self.name, #x.shape, k, tostring(axis))
  end
  return axis
end

local ALPHABET = "cdefghijklmnopqrstuvwxy"

function M.Dot:call(xs)
  list_of(self, xs, 2)
  local axes, sides, rest, used = {}, {}, "b", 0
  for k = 1, 2 do
    axes[k] = axis_of(self, k, xs[k])
    local letters = "b"
    for i = 2, #xs[k].shape do
      used = i == axes[k] and used or used + 1
      local letter = i == axes[k] and "z" or ALPHABET:sub(used, used)
      letters = letters .. letter
      if letter ~= "z" then rest = rest .. letter end
    end
    sides[k] = letters
  end
  local a, b = xs[1], xs[2]
  local n, m = a.shape[axes[1]], b.shape[axes[2]]
  if n ~= m and n ~= -1 and m ~= -1 then
    errors.raise("invalid_argument", "%s: axis %d of input 1 has %d, axis %d of input 2 has %d", self.name, axes[1], n,
      axes[2], m)
  end
  if self.normalize then a, b = tm.l2_normalize(a, axes[1]), tm.l2_normalize(b, axes[2]) end
  local y = tm.einsum({ a, b }, ("%s,%s->%s"):format(sides[1], sides[2], rest))
  return #rest == 1 and tm.expand_dims(y, 2) or y
end

return M
