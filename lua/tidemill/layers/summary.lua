--- model:summary(): a table of layers for people.

local options = require "tidemill.lib.options"
local nest = require "tidemill.lib.nest"
local text = require("tidemill.lib.shapes").text
local values = require "tidemill.lib.values"

local M = {}

local LINE = ("_"):rep(65)

local function grouped(n)
  local s = ("%d"):format(n)
  local out = s:reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (out:gsub("^,", ""))
end

--- Output shapes by layer, as far as the layer graph knows them.
local function shapes(model)
  local out = {}
  local function note(s)
    local node = s.node
    if node.layer then out[node.layer] = text(nest.flatten(node.outputs)[1].shape) end
    for _, x in ipairs(nest.flatten(node.args)) do
      if values.is_symbol(x) then note(x) end
    end
  end
  if rawget(model, "outputs") then
    for _, s in ipairs(nest.flatten(model.outputs)) do note(s) end
  end
  return out
end

local function count(variables)
  local n = 0
  for _, v in ipairs(variables) do n = n + values.count(v.shape) end
  return n
end

--- Print it, by `print_fn` when given.
function M.print(model, given)
  local say = options.read("summary", given, { print_fn = print }).print_fn
  local shape = shapes(model)
  say(("Model: %q"):format(model.name))
  say(LINE)
  say((" %-30s %-20s %12s"):format("Layer (type)", "Output shape", "Weights"))
  say(LINE)
  for _, l in ipairs(model.layers) do
    say((" %-30s %-20s %12s"):format(("%s (%s)"):format(l.name, l.class_name), shape[l] or "?",
      l.built and grouped(l:count_params()) or "not built"))
  end
  say(LINE)
  local trainable, rest = count(model.trainable_variables), count(model.non_trainable_variables)
  say("Weights: " .. grouped(trainable + rest))
  say("Trainable: " .. grouped(trainable))
  say("Not trainable: " .. grouped(rest))
end

return M
