--- Control flow: tm.cond, tm.while_loop.  In a traced function both become nodes; eagerly
--- Lua runs them.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local trace = require "tidemill.trace"

local ops, unpack = core.ops, table.unpack or unpack
local M = {}

local function truth(where, p)
  if type(p) == "boolean" then return p end
  p = core.as_value(p)
  if p.symbolic then return nil, p end
  local v = p:item()
  if type(v) ~= "boolean" then
    errors.raise("invalid_argument", "%s: the condition is %s, it must be a bool scalar", where, p.dtype)
  end
  return v
end

local function callable(where, what, f)
  if type(f) == "function" or (getmetatable(f) or {}).__call then return end
  errors.raise("invalid_argument", "%s: %s must be a function, got %s", where, what, kinds.a(f))
end

--- A branch as a graph: its flat results, the structure that they have, its captures.
local function branch(name, fn)
  local shape
  local g, captured = trace.branch(name, function()
    local r, flat = nest.pack(fn()), {}
    shape = nest.map(function(x)
      flat[#flat + 1] = core.as_value(x)
      return nest.slot(#flat)
    end, r)
    return flat
  end)
  return g, captured, shape
end

--- cond(p, f, g): what f() gives where p is true, else what g() gives.
function M.cond(p, f, g)
  callable("cond", "the second argument", f)
  if g ~= nil then callable("cond", "the third argument", g) end
  g = g or function() end
  local yes, symbol = truth("cond", p)
  if yes ~= nil then
    if yes then return f() end
    return g()
  end
  local then_graph, then_in, shape = branch("then", f)
  local else_graph, else_in = branch("otherwise", g)
  local inputs = {}
  for _, x in ipairs(then_in) do inputs[#inputs + 1] = x end
  for _, x in ipairs(else_in) do inputs[#inputs + 1] = x end
  local out = { ops.cond(symbol, inputs, { ["then"] = then_graph, otherwise = else_graph, nthen = #then_in }) }
  return nest.unpack(nest.map(function(i) return out[i.at] end, shape))
end

--- c and b of a loop that counts its turns in one more variable, the last.
local function counted(c, b, n, most)
  return function(...)
    local turn = (select(n + 1, ...))
    return ops.logical_and(core.as_value(c(unpack({ ... }, 1, n))), ops.less(turn, most))
  end, function(...)
    local turn = (select(n + 1, ...))
    local r = nest.pack(b(unpack({ ... }, 1, n)))
    if r.n ~= n then
      errors.raise("invalid_argument", "while_loop: the body gives %d values for %d variables", r.n, n)
    end
    r[n + 1] = turn + 1
    return unpack(r, 1, n + 1)
  end
end

--- while_loop(c, b, vars, { maximum_iterations }): vars = b(vars...) as long as
--- c(vars...); the list of them.
function M.while_loop(c, b, vars, opts)
  local o = options.read("while_loop", opts, { "maximum_iterations" })
  callable("while_loop", "the condition", c)
  callable("while_loop", "the body", b)
  if not nest.is_nested(vars) or vars[1] == nil then
    errors.raise("invalid_argument", "while_loop: the third argument is a list of tensors")
  end
  local list, n = {}, #vars
  for i, v in ipairs(vars) do list[i] = core.as_value(v) end
  if o.maximum_iterations then
    c, b = counted(c, b, n, o.maximum_iterations)
    vars = { unpack(list, 1, n) }
    vars[n + 1] = core.tensor(0, "int64")
    local all = M.while_loop(c, b, vars)
    all[n + 1] = nil
    return all
  end
  local symbol = core.tracing()
  if not symbol then
    while truth("while_loop", c(unpack(list))) do
      local r = { b(unpack(list)) }
      if #r ~= #list then
        errors.raise("invalid_argument", "while_loop: the body gives %d values for %d variables", #r, #list)
      end
      for i, x in ipairs(r) do list[i] = core.as_value(x) end
    end
    return list
  end
  local function graph(name, fn)
    return trace.branch(name, function(tr)
      local args, out = {}, {}
      for i, v in ipairs(list) do args[i] = core.trace_arg(tr, v.dtype, v.shape) end
      for i, x in ipairs { fn(unpack(args)) } do out[i] = core.as_value(x) end
      return out
    end)
  end
  local cond, cond_in = graph("condition", c)
  local body, body_in = graph("body", b)
  local inputs = { unpack(list) }
  for _, x in ipairs(cond_in) do inputs[#inputs + 1] = x end
  for _, x in ipairs(body_in) do inputs[#inputs + 1] = x end
  return { ops.while_loop(inputs, { cond = cond, body = body, nvar = #list, ncond = #cond_in }) }
end

return M
