--- Activations by name, and the way back from a probability to its logits.

local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

local M = {}

-- Output value -> { kind, logits }.  The output of a sigmoid loses what its logits
-- know (1 - 1e-9 is 1), so crossentropies look here first.
local source = setmetatable({}, { __mode = "k" })

--- Remember that `output` is sigmoid (or softmax, along the last axis) of `logits`.
function M.link(output, kind, logits)
  source[output] = { kind = kind, logits = logits }
  return output
end

--- The logits that a value was made of by this kind of activation, or nil.
function M.logits(output, kind)
  local s = source[output]
  if s and s.kind == kind then return s.logits end
end

function M.linear(x) return x end

function M.sigmoid(x) return M.link(tm.sigmoid(x), "sigmoid", x) end

--- Softmax along an axis (default: the last).
function M.softmax(x, axis)
  local y = tm.nn.softmax(x, axis or -1)
  if (axis or -1) == -1 then M.link(y, "softmax", x) end
  return y
end

function M.exponential(x) return tm.exp(x) end

function M.tanh(x) return tm.tanh(x) end

function M.hard_sigmoid(x) return tm.clip_by_value(0.2 * x + 0.5, 0, 1) end

for _, name in ipairs { "relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "softplus",
  "softsign", "log_softmax" } do
  M[name] = function(x) return tm.nn[name](x) end
end

M.swish = M.silu

local names = {}
for name in pairs(M) do
  if name ~= "link" and name ~= "logits" then names[#names + 1] = name end
end
table.sort(names)

--- A function of one tensor from a name, a function or nil (linear).
---@param where string  for messages: "Dense"
function M.get(where, x)
  if x == nil then return M.linear end
  if type(x) ~= "string" then return options.callable(where, "an activation that is no name", x) end
  for _, name in ipairs(names) do
    if name == x then return M[name] end
  end
  return options.unknown(where, "activation", x, names)
end

return M
