--- tm.callbacks.History: the logs of each epoch; fit has one and gives its `history`.

local Callback = require "tidemill.callbacks.callback"

---@class tm.callbacks.History : tm.callbacks.Callback
---@field history table<string, number[]>  one number an epoch
---@field epoch integer[]                  which epochs these were
local History = Callback:extend("History")

function History:init() self.history, self.epoch = {}, {} end

function History:on_epoch_end(epoch, logs)
  self.epoch[#self.epoch + 1] = epoch
  for name, value in pairs(logs or {}) do
    local list = self.history[name] or {}
    list[#list + 1] = value
    self.history[name] = list
  end
end

function History:get_state() return { history = self.history, epoch = self.epoch } end

function History:set_state(state) self.history, self.epoch = state.history or {}, state.epoch or {} end

return History
