--- ShardedVariable: one variable made of several that were there before.
---
--- Variables that a partitioner cuts are one variable with shards; this is the container
--- for shards that somebody made by hand.  It stands where a variable may.  Every call is
--- handed to the shards that hold the rows; only what wants the whole joins them.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local tm = require "tidemill.lib.lazy"
local variable = require "tidemill.variable"

local ops, unpack = core.ops, table.unpack or unpack

---@class tm.ShardedVariable : tm.Variable
local Sharded = { __name = "tm.ShardedVariable", __tm_variable = true }
local methods = {}

function Sharded.__index(self, key)
  if type(key) ~= "string" then return self:read()[key] end
  if methods[key] ~= nil then return methods[key] end
  if key == "rank" then return #self.shape end
  return core.methods[key]
end

Sharded.__len = variable.Variable.__len
Sharded.__tostring = variable.Variable.__tostring
for name, fn in pairs(variable.Variable) do
  -- Operators and refusals are those of every variable.
  if type(name) == "string" and name:find "^__" and Sharded[name] == nil then Sharded[name] = fn end
end
function Sharded.__tm_tensor(self) return self:read() end

--- The value: all shards joined.
function methods:read()
  local parts = {}
  for k, v in ipairs(self.variables) do parts[k] = v:read() end
  return ops.concat(parts, 1)
end
methods.value = methods.read

--- Rows of a value that belong to shard k.
local function piece(self, x, k)
  local v = self.variables[k]
  return core.methods.narrow(x, 1, self.offsets[k] + 1, v.shape[1])
end

local function whole(self, x)
  x = core.as_value(x, self.dtype)
  local fits = x.rank == #self.shape
  for d, n in ipairs(self.shape) do fits = fits and (x.shape[d] == n or x.shape[d] == -1) end
  if not fits then
    errors.raise("invalid_argument", "%s is (%s), the value is (%s)", self.name, table.concat(self.shape, ", "),
      table.concat(x.shape, ", "))
  end
  return x
end

for _, name in ipairs { "assign", "assign_add", "assign_sub", "_add_once", "_sub_once" } do
  methods[name] = function(self, x)
    x = whole(self, x)
    for k, v in ipairs(self.variables) do v[name](v, piece(self, x, k)) end
    return self
  end
end

local function as_ids(ids)
  ids = core.as_value(ids, "int64")
  return ids.dtype == "int64" and ids or ops.cast(ids, "int64")
end

--- Which of the ids are shard k's, and what they are there.  Ids of no shard go to the
--- first or the last as they are, which refuses them.
local function of_shard(self, ids, k)
  local from, rows = self.offsets[k], self.variables[k].shape[1]
  local mask, there = nil, ops.sub(ids, from)
  if k < #self.variables then mask = ops.less(ids, from + rows) end
  if k > 1 then
    local above = ops.greater_equal(ids, from)
    mask = mask and ops.logical_and(mask, above) or above
  end
  if k == #self.variables then
    there = ops.where(ops.greater_equal(ids, self.shape[1]), ids, there)
  end
  return mask, there
end

--- Call fn(shard, its ids, its rows) for every shard; rows may be nil.
local function by_shard(self, ids, rows, fn)
  for k, v in ipairs(self.variables) do
    local mask, there = of_shard(self, ids, k)
    if mask then
      there = ops.boolean_mask(there, mask)
      fn(v, there, rows and ops.boolean_mask(rows, mask), mask)
    else
      fn(v, there, rows)
    end
  end
end

for _, name in ipairs { "scatter_update", "scatter_add", "scatter_sub", "_scatter_sub_once" } do
  methods[name] = function(self, ids, rows)
    ids, rows = ops.reshape(as_ids(ids), { -1 }), core.as_value(rows, self.dtype)
    rows = ops.reshape(rows, { -1, unpack(self.shape, 2) })
    by_shard(self, ids, rows, function(v, there, part) v[name](v, there, part) end)
    return self
  end
end

--- Rows by ids: shape ids.shape + shape[2:].
function methods:sparse_read(ids)
  ids = as_ids(ids)
  if #self.variables == 1 then return self.variables[1]:sparse_read(ids) end
  local shape = ids.shape
  local flat = ops.reshape(ids, { -1 })
  local number = ops.sub(ops.cumsum(ops.ones_like(flat)), 1)
  local rows, places = {}, {}
  by_shard(self, flat, nil, function(v, there, _, mask)
    rows[#rows + 1] = v:sparse_read(there)
    places[#places + 1] = ops.boolean_mask(number, mask)
  end)
  local joined = ops.gather(ops.concat(rows, 1), ops.argsort(ops.concat(places, 1)))
  if #shape == 1 then return joined end
  local unknown = 0
  for _, n in ipairs(shape) do unknown = unknown + (n == -1 and 1 or 0) end
  if unknown > 1 then
    errors.raise("invalid_argument", "%s: ids of more than one unknown size; reshape them first", self.name)
  end
  local to = { unpack(shape) }
  for d = 2, #self.shape do to[#to + 1] = self.shape[d] end
  return ops.reshape(joined, to)
end

--- One step of an optimizer, as tm.Variable's.
function methods:_apply(rule, optimizer, grad, ...)
  if variable.is_slices(grad) then
    local rest = { n = select("#", ...), ... }
    by_shard(self, as_ids(grad.indices), grad.values, function(v, there, part)
      v:_apply(rule, optimizer, variable.slices(part, there, v.shape), unpack(rest, 1, rest.n))
    end)
    return
  end
  grad = core.as_value(grad, self.dtype)
  for k, v in ipairs(self.variables) do v:_apply(rule, optimizer, piece(self, grad, k), ...) end
end

function methods:_slot(optimizer, name)
  local parts = {}
  for k, v in ipairs(self.variables) do parts[k] = v:_slot(optimizer, name) end
  return ops.concat(parts, 1)
end

--- The gradient by this variable, from those by its shards (nil where none).
function methods:_join_gradients(list)
  local found, rows = false, true
  for k in ipairs(self.variables) do
    found = found or list[k] ~= nil
    rows = rows and (list[k] == nil or variable.is_slices(list[k]))
  end
  if not found then return nil end
  local ids, parts = {}, {}
  for k, v in ipairs(self.variables) do
    local g = list[k]
    if not rows then
      parts[k] = g == nil and tm.zeros(v.shape, v.dtype) or core.as_value(g)
    elseif g ~= nil then
      ids[#ids + 1] = ops.add(as_ids(g.indices), self.offsets[k])
      parts[#parts + 1] = g.values
    end
  end
  if not rows then return ops.concat(parts, 1) end
  return variable.slices(ops.concat(parts, 1), ops.concat(ids, 1), self.shape)
end

-- --- making ---

local function bad(fmt, ...) errors.raise("invalid_argument", "ShardedVariable: " .. fmt, ...) end

local function check(list)
  local fine = type(list) == "table" and getmetatable(list) == nil and #list > 0
  for _, v in ipairs(fine and list or {}) do fine = fine and variable.is(v) end
  if not fine then bad("the argument should be a non-empty list of variables") end
  local first = list[1]
  for _, v in ipairs(list) do
    if #v.shape == 0 then bad("scalar variables have no rows to put together") end
    if v.dtype ~= first.dtype then
      bad("the variables must have the same dtype; there are %s and %s", first.dtype, v.dtype)
    end
    local same = #v.shape == #first.shape
    for d = 2, #v.shape do same = same and v.shape[d] == first.shape[d] end
    if not same then
      bad("the variables must have the same shapes except for the first axis; there are (%s) and (%s)",
        table.concat(first.shape, ", "), table.concat(v.shape, ", "))
    end
    if v.trainable ~= first.trainable then bad("the variables must agree in trainable") end
  end
end

--- One variable of the rows of several: ShardedVariable{ v1, v2 }.
local function new(list)
  check(list)
  local shape, offsets = { unpack(list[1].shape) }, {}
  shape[1] = 0
  for k, v in ipairs(list) do
    offsets[k] = shape[1]
    shape[1] = shape[1] + v.shape[1]
  end
  return setmetatable({ variables = { unpack(list) }, offsets = offsets, shape = shape, dtype = list[1].dtype,
    name = "ShardedVariable", trainable = list[1].trainable, device = list[1].device, sharded = #list > 1 }, Sharded)
end

return { new = new }
