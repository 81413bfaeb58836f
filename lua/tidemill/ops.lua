--- The public functions of ops: tm.name, tm.nn.name, tm.strings.name, tm.random.name, and
--- methods x:name(...), all from the op table; and what is put together from ops.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
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

--- A symbol of the layer graph among the arguments, in lists too?
local function has_symbol(...)
  for i = 1, select("#", ...) do
    local x = (select(i, ...))
    local mt = type(x) == "table" and getmetatable(x) or nil
    if type(mt) == "table" and rawget(mt, "__tm_symbol") then return true end
    if type(x) == "table" and mt == nil then
      for _, v in pairs(x) do
        if has_symbol(v) then return true end
      end
    end
  end
  return false
end

--- A function of several ops: with symbols the whole call is one node of the layer graph.
local function composed(name, fn)
  local function f(...)
    if has_symbol(...) then return core.hooks.symbol_op(f, name, ...) end
    return fn(...)
  end
  return f
end

local function both(name, fn)
  fn = composed(name, fn)
  M[name] = fn
  core.methods[name] = fn
end

--- Elements by position along an axis; rows of a variable travel alone.
both("gather", function(params, indices, axis)
  if variable.is(params) and (axis == nil or axis == 1) then return params:sparse_read(indices) end
  return ops.gather(params, indices, axis)
end)

--- pad(x, { {before, after}, ... }, options): a pair for each axis.
both("pad", function(x, paddings, ...)
  if type(paddings) == "table" and type(paddings[1]) == "table" then
    local flat = {}
    for i, p in ipairs(paddings) do
      if type(p) ~= "table" or #p ~= 2 then
        errors.raise("invalid_argument", "pad: entry %d of paddings must be { before, after }", i)
      end
      flat[#flat + 1], flat[#flat + 2] = p[1], p[2]
    end
    paddings = flat
  end
  return ops.pad(x, paddings, ...)
end)

--- Size of the axis of x that is written as a Lua position; raises where there is none.
local function axis_size(where, x, axis)
  local at = type(axis) == "number" and (axis > 0 and axis or x.rank + 1 + axis)
  if not at or axis == 0 or x.shape[at] == nil then
    errors.raise("invalid_argument", "%s: axis %s of a tensor of rank %d; axes are 1 to the rank, or -1 for the last",
      where, tostring(axis), x.rank)
  end
  if x.shape[at] < 0 then
    errors.raise("invalid_argument", "%s: the size of axis %d is not known while tracing", where, axis)
  end
  return x.shape[at]
end

--- Parts along an axis: a count, or a list of sizes; a Lua list.
both("split", function(x, sizes, axis)
  x, axis = core.as_value(x), axis or 1
  if type(sizes) == "number" then
    local n = axis_size("split", x, axis)
    if sizes < 1 or sizes ~= math.floor(sizes) or n % sizes ~= 0 then
      errors.raise("invalid_argument", "split: axis %d of size %d cannot be cut into %s equal parts", axis, n,
        tostring(sizes))
    end
    local count, each = sizes, n / sizes
    sizes = {}
    for i = 1, count do sizes[i] = math.floor(each) end
  end
  if not nest.is_nested(sizes) then
    errors.raise("invalid_argument", "split takes a count or a list of sizes, got %s", kinds.a(sizes))
  end
  local parts, first = {}, 1
  for i, n in ipairs(sizes) do
    options.count("split", ("size %d"):format(i), n, 0)
    parts[i] = core.methods.narrow(x, axis, first, n)
    first = first + n
  end
  return parts
end)

--- Slices along an axis, without it; a Lua list.
both("unstack", function(x, axis)
  x, axis = core.as_value(x), axis or 1
  local parts = {}
  for i = 1, axis_size("unstack", x, axis) do parts[i] = core.methods.select(x, axis, i) end
  return parts
end)

--- Gradients scaled so that all together are no longer than clip_norm, and their norm
--- before; a nil stays nil.
function M.clip_by_global_norm(list, clip_norm)
  if not nest.is_nested(list) then
    errors.raise("invalid_argument", "clip_by_global_norm takes a list of tensors, got %s", kinds.a(list))
  end
  local n, squares = math.max(list.n or 0, #list), {}
  for i = 1, n do
    local g = list[i]
    if g ~= nil then
      squares[#squares + 1] = ops.reduce_sum(ops.square(variable.is_slices(g) and g.values or g))
    end
  end
  if #squares == 0 then return list, core.tensor(0) end
  local norm = ops.sqrt(ops.add_n(squares))
  local scale = ops.div(clip_norm, ops.maximum(norm, clip_norm))
  local out = { n = n }
  for i = 1, n do
    local g = list[i]
    if variable.is_slices(g) then
      out[i] = variable.slices(ops.mul(g.values, scale), g.indices, g.dense_shape)
    elseif g ~= nil then
      out[i] = ops.mul(g, scale)
    end
  end
  return out, norm
end

--- print(...): text and tensors in the order given, in a line, when the step runs.
function M.print(...)
  local list = {}
  for i = 1, select("#", ...) do
    local x = (select(i, ...))
    list[i] = (core.is_tensor(x) or variable.is(x)) and core.as_value(x) or core.tensor(tostring(x))
  end
  if #list == 0 then list[1] = core.tensor "" end
  ops.print(list)
end

--- (x - mean) / sqrt(variance + epsilon) * scale + offset; offset and scale may be nil.
--- variance_epsilon is a number, or an option.
M.nn.batch_normalization = composed("nn.batch_normalization", function(x, mean, variance, offset, scale, opts)
  if type(opts) == "number" then opts = { variance_epsilon = opts } end
  local o = options.read("batch_normalization", opts, { variance_epsilon = 1e-3 })
  local by = ops.rsqrt(ops.add(variance, o.variance_epsilon))
  if scale ~= nil then by = ops.mul(by, scale) end
  local y = ops.mul(ops.sub(x, mean), by)
  return offset == nil and y or ops.add(y, offset)
end)

--- x with mean 0 and variance 1 along an axis (or a list of axes), times scale, plus
--- offset, which may be nil.
M.nn.layer_normalization = composed("nn.layer_normalization", function(x, scale, offset, opts)
  local o = options.read("layer_normalization", opts, { axis = -1, epsilon = 1e-3 })
  local axes = type(o.axis) == "table" and o.axis or { o.axis }
  local mean, variance = ops["nn.moments"](x, axes, { keepdims = true })
  return M.nn.batch_normalization(x, mean, variance, offset, scale, { variance_epsilon = o.epsilon })
end)

--- Rows of a table by ids; a sharded variable is never joined.
M.nn.embedding_lookup = composed("nn.embedding_lookup", function(params, ids) return M.gather(params, ids) end)

--- Sum of a batch's losses over its size (or global_batch_size).
M.nn.compute_average_loss = composed("nn.compute_average_loss", function(losses, opts)
  local o = options.read("compute_average_loss", opts, { "sample_weight", "global_batch_size" })
  losses = core.as_value(losses)
  if o.sample_weight ~= nil then losses = ops.mul(losses, o.sample_weight) end
  if o.global_batch_size then return ops.div(ops.reduce_sum(losses), o.global_batch_size) end
  if losses.rank == 0 then return losses end
  local n = ops.cast(ops.gather(ops.shape_of(losses), 0), losses.dtype)
  return ops.div(ops.reduce_sum(losses), n)
end)

--- A regularization loss over the number of replicas: one a worker.
function M.nn.scale_regularization_loss(loss) return ops.reduce_sum(loss) end

--- Nothing to do: what is written is done in the order in which it was written.
function M.group() end

return M
