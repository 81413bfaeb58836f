--- What layers of windows share: options that are a number or one an axis, padding, the
--- place of the channels, which axes an input must have.

local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local shapes = require "tidemill.lib.shapes"

local M = {}

local AXES = { "steps", "height, width" }

--- A whole number for all axes or a list of one an axis, as a list.
function M.sizes(layer, name, x, rank)
  local list = x
  if type(x) ~= "table" then
    list = {}
    for i = 1, rank do list[i] = x end
  end
  if #list ~= rank then
    errors.raise("invalid_argument", "%s: %s must be a number or a list of %d, got %d of them", layer.name, name,
      rank, #list)
  end
  local out = {}
  for i, n in ipairs(list) do out[i] = options.count(layer.name, name, n, 1) end
  return out
end

--- One of the words, in small letters.
function M.padding(layer, x, known)
  local word = type(x) == "string" and x:lower() or x
  for _, k in ipairs(known) do
    if word == k then return k end
  end
  return options.unknown(layer.name, "padding", tostring(x), known)
end

--- Channels are the last axis.
function M.format(layer, x)
  if x == nil or x == "channels_last" then return "channels_last" end
  return errors.raise(x == "channels_first" and "unimplemented" or "invalid_argument",
    '%s: data_format is "channels_last" only, got %s: bring the channels to the end, tm.transpose(x, { 1, 3, 4, 2 })',
    layer.name, tostring(x))
end

--- Raise unless the shape is a batch of `rank` axes with channels behind; gives how many.
function M.channels(layer, shape, rank)
  if #shape ~= rank + 2 then
    local want = ("(batch, %s, channels)"):format(AXES[rank])
    errors.raise("invalid_argument", "%s: the input must be %s, got shape %s%s", layer.name, want,
      shapes.text(shape), #shape == rank + 1 and "; tm.expand_dims(x, -1) makes one channel" or "")
  end
  return shape[#shape]
end

return M
