--- Layers that only change the shape: Flatten and Reshape.  The batch axis stays.

local Layer = require "tidemill.layers.base"
local errors = require "tidemill.errors"
local tm = require "tidemill.lib.lazy"

local M = {}

--- Product of the sizes after the batch; nil when one is unknown.
local function elements(shape)
  local n = 1
  for i = 2, #shape do
    if shape[i] == -1 then return nil end
    n = n * shape[i]
  end
  return n
end

--- All axes but the batch become one.
---@class tm.layers.Flatten : tm.layers.Layer
M.Flatten = Layer:extend("Flatten")

function M.Flatten:call(x)
  local shape = x.shape
  local n = elements(shape)
  if n then return tm.reshape(x, { shape[1], n }) end
  if shape[1] ~= -1 then return tm.reshape(x, { shape[1], -1 }) end
  return errors.raise("invalid_argument", "%s: batch and another size are unknown, the result has no shape",
    self.name)
end

--- Reshape{ target_shape = { 3, 4 } } or Reshape{ 3, 4 }; one size may be -1.
---@class tm.layers.Reshape : tm.layers.Layer
M.Reshape = Layer:extend("Reshape")

function M.Reshape:init(given)
  if type(given) == "table" and given[1] ~= nil then
    local sizes, rest = {}, {}
    for k, v in pairs(given) do
      if type(k) == "number" then sizes[k] = v else rest[k] = v end
    end
    rest.target_shape = sizes
    given = rest
  end
  local o = self:options(given, { "target_shape" })
  if type(o.target_shape) ~= "table" then
    errors.raise("invalid_argument", "Reshape needs target_shape, a list of sizes without the batch")
  end
  self.target_shape = o.target_shape
end

function M.Reshape:call(x)
  local have, known, open = elements(x.shape), 1, nil
  local shape = { x.shape[1] }
  for i, n in ipairs(self.target_shape) do
    shape[i + 1] = n
    if n ~= -1 then known = known * n
    elseif open then errors.raise("invalid_argument", "%s: only one size of target_shape may be -1", self.name)
    else open = i + 1 end
  end
  if open and have and known > 0 and have % known == 0 then shape[open] = math.floor(have / known) end
  if have and have ~= known and not (open and shape[open] * known == have) then
    errors.raise("invalid_argument", "%s: %d elements do not make the shape {%s}", self.name, have,
      table.concat(self.target_shape, ", "))
  end
  return tm.reshape(x, shape)
end

return M
