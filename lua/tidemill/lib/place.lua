--- Where layers, metrics and optimizers make their variables: in the strategy scope in
--- which they were constructed, eagerly, whatever trace is open.

local interrupt = require "tidemill.lib.interrupt"
local scope = require "tidemill.scope"
local trace = require "tidemill.trace"
local variable = require "tidemill.variable"

local M = {}

--- The scope that is open now, nil when none is.
M.current = scope.current

--- fn(...) outside of open traces.
M.eagerly = trace.eagerly

--- fn(...) eagerly with this scope open; false: none, variables live in this process.
function M.within(where, fn, ...)
  return trace.eagerly(scope.with, where or false, fn, ...)
end

-- What looks at every variable that a file asks for; nil: nobody.
local limit
interrupt.keep(function()
  local before = limit
  return function() limit = before end
end)

--- fn() while check(name, shape) sees each variable before it is made, and may raise.
function M.limited(check, fn)
  local before = limit
  limit = check
  local ok, x = pcall(fn)
  limit = before
  if not ok then error(x, 0) end
  return x
end

--- Make a variable in a scope.  `o` is tm.Variable's table; `how.unpartitioned` keeps it
--- in one piece, `how.beside` puts it where another variable is.
function M.variable(where, initial, o, how)
  if limit then limit(o.name, o.shape) end
  o.scope = where or false
  if how and how.unpartitioned then o.partition = false end
  if how and how.beside then o.colocate_with = how.beside end
  return trace.eagerly(variable.new, initial, o)
end

return M
