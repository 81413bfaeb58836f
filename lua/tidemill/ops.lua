--- The public functions of ops: tm.name, tm.nn.name, tm.strings.name, tm.random.name, and
--- methods x:name(...), all from the op table; and what is put together from ops.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local variable = require "tidemill.variable"

local ops = core.ops
local M = { nn = {}, strings = {}, random = {} }

for name, fn in pairs(ops) do
  local info = core.op_info(name)
  local group, short = name:match "^(%a+)%.(.+)$"
  if not info.hidden then
    if group and M[group] then M[group][short] = fn else M[name] = fn end
    local method = short or name
    if info.method and not core.methods[method] then core.methods[method] = fn end
  end
end

function core.hooks.unknown_option(name, names, where) options.unknown(where, "option", name, names) end

-- --- where Lua's manners differ from the table's ---

M.select, M.narrow, M.slice = core.methods.select, core.methods.narrow, core.methods.slice
function core.hooks.method(name) return core.methods[name] end

local function both(name, fn)
  M[name] = fn
  core.methods[name] = fn
end

--- Parts along an axis: a count, or a list of sizes; a Lua list.
both("split", function(x, sizes, axis)
  x, axis = core.as_value(x), axis or 1
  if type(sizes) == "number" then
    local at = axis > 0 and axis or x.rank + 1 + axis
    local n = x.shape[at]
    if not n or n < 0 or n % sizes ~= 0 then
      errors.raise("invalid_argument", "split: axis %d of size %s cannot be cut into %d equal parts", axis,
        tostring(n), sizes)
    end
    local count, each = sizes, n / sizes
    sizes = {}
    for i = 1, count do sizes[i] = math.floor(each) end
  end
  local parts, first = {}, 1
  for i, n in ipairs(sizes) do
    parts[i] = core.methods.narrow(x, axis, first, n)
    first = first + n
  end
  return parts
end)

--- Slices along an axis, without it; a Lua list.
both("unstack", function(x, axis)
  x, axis = core.as_value(x), axis or 1
  local n = x.shape[axis > 0 and axis or x.rank + 1 + axis]
  if not n or n < 0 then
    errors.raise("invalid_argument", "unstack: the size of axis %d is not known", axis)
  end
  local parts = {}
  for i = 1, n do parts[i] = core.methods.select(x, axis, i) end
  return parts
end)

--- Gradients scaled so that all together are no longer than clip_norm; and their norm.
function M.clip_by_global_norm(list, clip_norm)
  local squares = {}
  for i, g in ipairs(list) do squares[i] = ops.reduce_sum(ops.square(g)) end
  local norm = ops.sqrt(ops.add_n(squares))
  local scale = ops.div(clip_norm, ops.maximum(norm, clip_norm))
  local out = {}
  for i, g in ipairs(list) do out[i] = ops.mul(g, scale) end
  return out, norm
end

--- print(...): text and tensors, when the step runs.
function M.print(...)
  local n, message, tensors = select("#", ...), {}, {}
  for i = 1, n do
    local x = (select(i, ...))
    if core.is_tensor(x) or variable.is(x) then
      if not core.tracing() then message[#message + 1] = tostring(variable.is(x) and x:read() or x)
      else tensors[#tensors + 1] = core.as_value(x) end
    else
      message[#message + 1] = tostring(x)
    end
  end
  if #tensors == 0 and not core.tracing() then
    core.print(table.concat(message, " ") .. "\n")
    return
  end
  if #tensors == 0 then tensors[1] = core.tensor(table.concat(message, " ")); message = {} end
  return ops.print(tensors, { message = #message > 0 and table.concat(message, " ") .. " " or "" })
end

--- Rows of a table by ids; a sharded variable is never joined.
function M.nn.embedding_lookup(params, ids)
  if variable.is(params) then return params:sparse_read(ids) end
  return ops.gather(params, ids)
end

--- Sum of a batch's losses over its size (or global_batch_size).
function M.nn.compute_average_loss(losses, opts)
  local o = options.read("compute_average_loss", opts, { "sample_weight", "global_batch_size" })
  losses = core.as_value(losses)
  if o.sample_weight ~= nil then losses = ops.mul(losses, o.sample_weight) end
  if o.global_batch_size then return ops.div(ops.reduce_sum(losses), o.global_batch_size) end
  if losses.rank == 0 then return losses end
  local n = ops.cast(ops.gather(ops.shape_of(losses), 0), losses.dtype)
  return ops.div(ops.reduce_sum(losses), n)
end

--- A regularization loss over the number of replicas: one a worker.
function M.nn.scale_regularization_loss(loss) return ops.reduce_sum(loss) end

return M
