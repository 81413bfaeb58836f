--- Strategy scopes: a stack for each coroutine.
---
--- A scope is an object with the method create_variable (see variable.lua); without one
--- variables live in this process.

local coroutines = require "tidemill.lib.coroutines"
local interrupt = require "tidemill.lib.interrupt"

local M = {}

local stacks = coroutines.keep(setmetatable({}, { __mode = "k" }))

interrupt.keep(function()
  local stack = stacks[coroutines.key()]
  local depth = stack and #stack
  return function()
    for i = stack and #stack or 0, (depth or 0) + 1, -1 do stack[i] = nil end
  end
end)

--- The innermost scope of the running coroutine, nil: none.
function M.current()
  local stack = coroutines.find(stacks)
  return stack and stack[#stack] or nil
end

local function leave(stack, depth, ok, ...)
  for i = #stack, depth + 1, -1 do stack[i] = nil end
  if depth == 0 then stacks[coroutines.key()] = nil end
  if not ok then error((...), 0) end
  return ...
end

--- fn(...) with this scope open; false hides the scopes around it.
function M.with(scope, fn, ...)
  local key = coroutines.key()
  local stack = stacks[key]
  if not stack then
    stack = {}
    stacks[key] = stack
  end
  local depth = #stack
  stack[depth + 1] = scope
  return leave(stack, depth, pcall(fn, ...))
end

return M
