--- Layers without weights that apply a function: Activation, Dropout, Lambda.

local Layer = require "tidemill.layers.base"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

local M = {}

--- Options, or the one obvious value in their place.
local function obvious(given, name)
  if type(given) == "table" and getmetatable(given) == nil then return given end
  return { [name] = given }
end

--- Activation("relu"), a function, or Activation{ activation = "relu" }.
---@class tm.layers.Activation : tm.layers.Layer
M.Activation = Layer:extend("Activation")

function M.Activation:init(given)
  local o = self:options(obvious(given, "activation"), { "activation" })
  self.activation = self:activation_of(options.need("Activation", o, "activation"))
end

function M.Activation:call(x) return self.activation(x) end

--- Dropout(0.5) or Dropout{ rate = 0.5, seed }: in training, zeros with probability
--- rate, the rest scaled up.
---@class tm.layers.Dropout : tm.layers.Layer
M.Dropout = Layer:extend("Dropout")

function M.Dropout:init(given)
  local o = self:options(obvious(given, "rate"), { "rate", "seed" })
  self.rate = options.number("Dropout", "rate", options.need("Dropout", o, "rate"), 0, 1)
  self.seed = o.seed
end

function M.Dropout:call(x, training)
  if not training or self.rate == 0 then return x end
  return (tm.nn.dropout(x, self.rate, { seed = self.seed }))
end

--- Lambda(fn) or Lambda{ fn = fn }: fn(x), or fn(x, training).
---@class tm.layers.Lambda : tm.layers.Layer
M.Lambda = Layer:extend("Lambda")

function M.Lambda:init(given)
  local o = self:options(obvious(given, "fn"), { "fn" })
  if type(o.fn) ~= "function" then
    errors.raise("invalid_argument", "Lambda takes a function of the input, got %s", kinds.a(o.fn))
  end
  self.fn = o.fn
end

function M.Lambda:call(x, training) return self.fn(x, training) end

return M
