--- Ctrl-C that ends a piece of work and not the script.
---
---     local ok, e, interrupted = interrupt.catch(work)
---     if interrupted then
---       ...                                -- end it in order; one more Ctrl-C ends the program
---       interrupt.over()                   -- the script goes on: the next one is a first one
---     end
---
--- In the program `tidemill` Ctrl-C raises in whatever runs and ends every wait
--- (core/host/interrupt.c).  Under a Lua of its own it is an error of that Lua's.

local core = require "tidemill.core"

local unpack = table.unpack or unpack

local M = {}

local function nothing() end
local function never() return false end

local caught = core.interrupts_caught or nothing
local note = core.note_interrupt or never

--- Did the interpreter itself raise this for Ctrl-C?  lua.c does, once.
local function of_lua(e)
  return not core.note_interrupt and type(e) == "string" and e:find "interrupted!$" ~= nil
end

--- pcall(fn), and whether Ctrl-C came meanwhile; it is raised no more then.  No interrupt
--- is raised in this function itself, which is why it calls C only.
---@return boolean ok
---@return any error
---@return boolean interrupted
local function catch(fn)
  caught(1)
  local ok, e = pcall(fn)
  caught(-1)
  return ok, e, note()
end
if core.catch_interrupts then core.catch_interrupts(catch) end

local keepers = {}

--- What is open now (a scope, a trace) is open again after a piece of work that Ctrl-C
--- ended: what would have closed the rest is ended by Ctrl-C too.  save() gives a function
--- that brings back what was.
function M.keep(save) keepers[#keepers + 1] = save end

local function saved()
  local mark, list = core.mark(), {}
  for i, save in ipairs(keepers) do list[i] = save() end
  return function()
    core.unwind(mark)
    for _, bring_back in ipairs(list) do bring_back() end
  end
end

function M.catch(fn, ...)
  local args, n, bring_back = { ... }, select("#", ...), saved()
  local ok, e, interrupted = catch(function() return fn(unpack(args, 1, n)) end)
  interrupted = interrupted or (not ok and of_lua(e))
  if interrupted then bring_back() end
  return ok, e, interrupted
end

--- The script goes on after an interrupt.
M.over = core.forget_interrupt or nothing

--- Take note of a Ctrl-C that a pcall caught, and go on; false: there was none.
---@return boolean
function M.interrupted()
  local yes = note()
  M.over()
  return yes
end

return M
