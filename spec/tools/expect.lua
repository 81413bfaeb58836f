-- Errors that specs expect.
local tm = require "tidemill"

local M = {}

local function check(code, text, e)
  if not tm.is_error(e, code) then error(("no error %s: %s"):format(code, tostring(e)), 3) end
  for _, s in ipairs(type(text) == "table" and text or { text }) do
    if not tostring(e):find(s, 1, true) then error(("no %q in: %s"):format(s, tostring(e)), 3) end
  end
  return e
end

--- fn(...) raises an error of this code, with this text (or each of a list) in it; gives it.
function M.raises(code, text, fn, ...)
  local ok, e = pcall(fn, ...)
  if ok then error(("nothing was raised; expected %s"):format(code), 2) end
  return check(code, text, e)
end

--- What a call gave is nil and an error of this code, with this text in it; gives the error.
function M.fails(code, text, x, e)
  if x ~= nil then error(("got %s; expected nil and %s"):format(tostring(x), code), 2) end
  return check(code, text, e)
end

return M
