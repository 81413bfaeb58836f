--- Error objects: { code, message, task, op, step, traceback }.
---
--- C raises them too (core/lua/error.c); both share one metatable.

local core = require "tidemill.core"

local M = {}

---@class tm.Error
---@field code string
---@field message string
---@field task? string
---@field op? string
---@field step? integer
---@field traceback? string
local Error = core.Error
Error.__index = Error
Error.__name = "tm.Error"
M.Error = Error

function Error:__tostring()
  local where = {}
  if self.task then where[#where + 1] = self.task end
  if self.step then where[#where + 1] = ("step %d"):format(self.step) end
  return ("%s: %s%s%s"):format(self.code, self.op and self.op .. ": " or "", self.message,
    #where > 0 and " (" .. table.concat(where, ", ") .. ")" or "")
end

function Error.__concat(a, b) return tostring(a) .. tostring(b) end

--- Make an error object, without raising it.
---@param code string
function M.new(code, format, ...)
  local message = select("#", ...) > 0 and format:format(...) or format
  return setmetatable({ code = code, message = message, traceback = debug.traceback("", 2) }, Error)
end

--- Raise an error object.
---@param code string
function M.raise(code, format, ...) error(M.new(code, format, ...), 0) end

--- Is e an error object (with this code)?
function M.is_error(e, code)
  return getmetatable(e) == Error and (code == nil or e.code == code)
end

--- Anything that was raised, as an error object: a Lua error is "unknown".
function M.wrap(e)
  if M.is_error(e) then return e end
  return setmetatable({ code = "unknown", message = tostring(e) }, Error)
end

return M
