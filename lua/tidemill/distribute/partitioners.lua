--- Partitioners: into how many shards a variable is cut, axis by axis.
--- A partitioner is a function `(shape, dtype, axis)` -> list of counts, one an axis; the
--- ones here are callable objects.  `axis` counts from 1 (default 1).  Formulas follow
--- TensorFlow's sharded_variable.py; where its documentation and code differ, the code.

local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"

local M = {}

local dtype_bytes = {
  float32 = 4, float64 = 8, float16 = 2, bfloat16 = 2, int8 = 1, uint8 = 1,
  int32 = 4, int64 = 8, bool = 1,
}

local function positive(where, name, value)
  if type(value) ~= "number" or value < 1 or value % 1 ~= 0 then
    errors.raise("invalid_argument", "%s: `%s` must be a positive whole number, got %s", where, name, tostring(value))
  end
end

local function element_bytes(where, dtype, bytes_per_string)
  if dtype == "string" then return bytes_per_string end
  local n = dtype_bytes[dtype]
  if not n then
    errors.raise("invalid_argument", "%s: unknown dtype %s", where, tostring(dtype))
  end
  return n
end

--- Check a call's shape and axis; gives the axis' position and the number of elements.
local function measure(where, shape, axis)
  axis = axis or 1
  if axis == 0 then errors.raise("invalid_argument", where .. ": positions count from 1") end
  if axis < 0 then axis = #shape + 1 + axis end
  if axis < 1 or axis > #shape then
    errors.raise("invalid_argument", "%s: axis %d of a shape of rank %d", where, axis, #shape)
  end
  local count = 1
  for i, d in ipairs(shape) do
    if type(d) ~= "number" or d < 0 then
      errors.raise("invalid_argument", "%s: size %d of the shape is %s, it must be known", where, i, tostring(d))
    end
    count = count * d
  end
  return axis, count
end

local function result(shape, axis, n)
  local r = {}
  for i = 1, #shape do r[i] = 1 end
  r[axis] = n
  return r
end

local function class(name, fields, check, compute)
  local mt = { __name = "tm." .. name, __call = compute }
  return function(opts)
    local o = options.read(name, opts, fields)
    check(o)
    return setmetatable(o, mt)
  end
end

--- A fixed number of shards: min(num_shards, rows).
M.FixedShardsPartitioner = class("FixedShardsPartitioner", { "num_shards" },
  function(o) positive("FixedShardsPartitioner", "num_shards", o.num_shards) end,
  function(self, shape, _, axis)
    axis = measure("FixedShardsPartitioner", shape, axis)
    return result(shape, axis, math.min(self.num_shards, shape[axis]))
  end)

--- As many shards as there are pieces of min_shard_bytes (rounded up), at most max_shards.
M.MinSizePartitioner = class("MinSizePartitioner",
  { min_shard_bytes = 262144, max_shards = 1, bytes_per_string = 16 },
  function(o)
    for _, k in ipairs { "min_shard_bytes", "max_shards", "bytes_per_string" } do
      positive("MinSizePartitioner", k, o[k])
    end
  end,
  function(self, shape, dtype, axis)
    local where = "MinSizePartitioner"
    local at, count = measure(where, shape, axis)
    local bytes = count * element_bytes(where, dtype, self.bytes_per_string)
    local n = math.ceil(bytes / self.min_shard_bytes)
    n = math.min(shape[at], self.max_shards, n)
    return result(shape, at, math.max(1, math.floor(n)))
  end)

--- So many shards that none is above max_shard_bytes (a row above it is a shard of its own),
--- at most max_shards.
M.MaxSizePartitioner = class("MaxSizePartitioner",
  { "max_shard_bytes", "max_shards", bytes_per_string = 16 },
  function(o)
    positive("MaxSizePartitioner", "max_shard_bytes", o.max_shard_bytes)
    positive("MaxSizePartitioner", "bytes_per_string", o.bytes_per_string)
    if o.max_shards ~= nil then positive("MaxSizePartitioner", "max_shards", o.max_shards) end
  end,
  function(self, shape, dtype, axis)
    local where = "MaxSizePartitioner"
    local at, count = measure(where, shape, axis)
    if count == 0 then return result(shape, at, 1) end
    local slice = count / shape[at] * element_bytes(where, dtype, self.bytes_per_string)
    local per_shard = math.max(1, math.floor(self.max_shard_bytes / slice))
    local n = math.ceil(shape[at] / per_shard)
    if self.max_shards then n = math.min(self.max_shards, n) end
    return result(shape, at, math.floor(n))
  end)

return M
