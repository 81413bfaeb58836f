--- What callbacks that watch one number of the logs share: which way is better, and how
--- they read it.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"

local M = {}

--- Metrics that are better when they are larger, by a part of their names.
local larger = { "acc", "auc", "fmeasure", "f1", "precision", "recall", "r2", "top_k" }

local modes = { auto = true, min = true, max = true }

--- The option `verbose`: 0 is silent, 1 tells what happens.
function M.verbose(where, x)
  if type(x) == "boolean" then return x and 1 or 0 end
  return options.count(where, "verbose", x, 0)
end

--- Check the options `monitor` and `mode`; gives "min" or "max".
---@param where string  for messages
function M.direction(where, name, mode)
  if type(name) ~= "string" then
    errors.raise("invalid_argument", '%s: monitor is the name of a loss or metric, as "val_loss", got %s', where,
      kinds.a(name))
  end
  if not modes[mode] then options.unknown(where, "mode", mode, { "auto", "max", "min" }) end
  if mode ~= "auto" then return mode end
  for _, part in ipairs(larger) do
    if name:lower():find(part, 1, true) then return "max" end
  end
  return "min"
end

--- What any first value is better than.
function M.worst(direction) return direction == "min" and math.huge or -math.huge end

--- Is `x` better than `best` by more than `delta`?
function M.better(direction, x, best, delta)
  if direction == "min" then return x < best - delta end
  return x > best + delta
end

--- The number that `cb.monitor` names, nil when the logs lack it: that is told once a fit.
function M.value(cb, logs)
  local x = logs and logs[cb.monitor]
  if x == nil and not cb._told then
    local names = {}
    for name in pairs(logs or {}) do names[#names + 1] = tostring(name) end
    table.sort(names)
    core.log("warn", ('%s: there is no "%s" to monitor; there are: %s'):format(cb.class_name, cb.monitor,
      table.concat(names, ", ")))
    cb._told = true
  end
  if values.is_tensor(x) and x.rank == 0 then x = x:item() end
  if x ~= nil and type(x) ~= "number" then
    errors.raise("invalid_argument", '%s: "%s" is to be monitored, which takes a number; it is a %s', cb.class_name,
      cb.monitor, kinds.of(x))
  end
  return x
end

--- Print a line of a verbose callback; the progress bar's own line stays whole.
function M.say(format, ...)
  io.stdout:write("\n", format:format(...), "\n")
  io.stdout:flush()
end

return M
