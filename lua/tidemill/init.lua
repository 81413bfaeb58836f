--- tidemill: parameter-server training, Lua in charge.  `local tm = require "tidemill"`.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local ops = require "tidemill.ops"

local tm = {}
package.loaded["tidemill"] = tm

for name, fn in pairs(ops) do tm[name] = fn end
for _, module in ipairs { "tensor", "tape", "control" } do
  for name, fn in pairs(require("tidemill." .. module)) do tm[name] = fn end
end

local variable = require "tidemill.variable"
local func = require "tidemill.func"
local trace = require "tidemill.trace"

tm.random = require "tidemill.random"
tm.data = require "tidemill.data"
tm.Variable, tm.is_variable = variable.new, variable.is
tm.func, tm.is_function = func.func, func.is
tm.is_error = errors.is_error
tm.help = require "tidemill.help"
tm.version, tm.time = core.version, core.time
tm.interrupted = require("tidemill.lib.interrupt").interrupted

--- tm.log(x) is the logarithm, tm.log.to("stderr" | "stdout" | path | nil, level) the log's sink.
local logarithm = ops.log
tm.log = setmetatable({ to = core.log_to }, { __call = function(_, ...) return logarithm(...) end })
tm._trace_types = trace.types

--- sleep(seconds): now, or when the step runs.
function tm.sleep(seconds)
  if core.tracing() then return core.ops.sleep(seconds) end
  return require("tidemill.distribute.wait").sleep(seconds)
end

function core.hooks.symbol_op(fn, name, ...)
  if not tm._symbol_op then local _ = tm.layers end
  return tm._symbol_op(fn, name, ...)
end

-- Loaded when first used.
local lazy = {
  layers = "layers", optimizers = "optimizers", losses = "losses", metrics = "metrics", models = "models",
  initializers = "initializers", regularizers = "regularizers", constraints = "constraints",
  activations = "activations", distribute = "distribute", train = "train", lookup = "lookup", summary = "summary",
  callbacks = "callbacks",
}
local from = { Input = "models", Model = "models", Sequential = "models" }

return setmetatable(tm, {
  __index = function(_, key)
    if from[key] then
      local m = require("tidemill." .. from[key])
      for name in pairs(from) do tm[name] = m[name] end
      return m[key]
    end
    if key == "async" then
      tm.async = require("tidemill.distribute.wait").async
      return tm.async
    end
    if not lazy[key] then return nil end
    local m = require("tidemill." .. lazy[key])
    tm[key] = m
    return m
  end,
})
