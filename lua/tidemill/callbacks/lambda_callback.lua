--- tm.callbacks.LambdaCallback: functions in place of methods; they are called without
--- the callback.
---
---     tm.callbacks.LambdaCallback{ on_epoch_end = function(epoch, logs) print(epoch, logs.loss) end }
---
--- (A plain table in the list of callbacks does as well, with the callback first.)

local Callback = require "tidemill.callbacks.callback"
local options = require "tidemill.lib.options"

---@class tm.callbacks.LambdaCallback : tm.callbacks.Callback
local Lambda = Callback:extend("LambdaCallback")

local NAME = "LambdaCallback"

function Lambda:init(given)
  for hook, fn in pairs(options.read(NAME, given, Callback.hooks)) do
    options.callable(NAME, hook, fn)
    rawset(self, hook, function(_, ...) return fn(...) end)
  end
end

return Lambda
