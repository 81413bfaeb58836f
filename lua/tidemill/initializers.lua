--- Initializers, with Keras's names and formulas.
---
--- `init:named(shape)` describes the values by name, { kind, a, b, seed }: parameter
--- servers draw them, numbers indexed by element, so no values travel and any sharding
--- gives the same.  `init(shape, dtype)` gives the values as a tensor.

local class = require "tidemill.lib.class"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local seeds = require "tidemill.lib.seeds"
local tm = require "tidemill.lib.lazy"

local M = {}

local classes = {}

local Initializer = class.new("Initializer")
M.Initializer = Initializer

--- Description of the values by name, nil when only `values` knows them.
function Initializer.named() return nil end

--- The values: those that a variable made of the description has.  Others override it.
function Initializer:values(shape, dtype)
  return place.eagerly(function()
    return place.variable(false, self, { name = self.class_name, shape = shape, dtype = dtype }):read()
  end)
end

--- Rows from `offset` on of the values of the full shape.  They are asked for shard by
--- shard: the whole is kept from the first to the last, so that one draw serves all.
local function piece(self, shape, dtype, offset, full_shape)
  if offset == 0 or not self._whole then rawset(self, "_whole", self:values(full_shape, dtype)) end
  local rows = self._whole:narrow(1, offset + 1, shape[1])
  if offset + shape[1] >= full_shape[1] then rawset(self, "_whole", nil) end
  return rows
end

--- init(shape, dtype), or as tm.Variable calls it: (shape, dtype, offset, full_shape).
function Initializer.__call(self, shape, dtype, offset, full_shape)
  if type(shape) ~= "table" then
    errors.raise("invalid_argument", "%s: the shape must be a list, got %s", self.class_name, kinds.a(shape))
  end
  dtype = dtype or "float32"
  if offset then return piece(self, shape, dtype, offset, full_shape) end
  return self:values(shape, dtype)
end

local function define(name, known, named, values)
  local c = Initializer:extend(name)
  function c:init(o)
    if type(o) == "number" and known.value ~= nil then o = { value = o } end
    self.options = options.read(name, o, known)
  end
  if named then
    function c:named(shape)
      local n = named(self.options, shape)
      if n.a and n.kind ~= "constant" then n.seed = self.options.seed or seeds.next() end
      return n
    end
  end
  if values then
    function c:values(shape, dtype) return values(self.options, shape, dtype) end
  end
  classes[name], M[name] = c, c
end

define("Zeros", {}, function() return { kind = "zeros" } end)
define("Ones", {}, function() return { kind = "ones" } end)
define("Constant", { value = 0 }, function(o) return { kind = "constant", a = o.value, b = 0 } end)
define("RandomUniform", { "seed", minval = -0.05, maxval = 0.05 },
  function(o) return { kind = "uniform", a = o.minval, b = o.maxval } end)
define("RandomNormal", { "seed", mean = 0, stddev = 0.05 },
  function(o) return { kind = "normal", a = o.mean, b = o.stddev } end)
define("TruncatedNormal", { "seed", mean = 0, stddev = 0.05 },
  function(o) return { kind = "truncated_normal", a = o.mean, b = o.stddev } end)

--- Inputs and outputs of a weight: the last two axes, times what stands before them.
local function fans(shape)
  local n = #shape
  if n == 0 then return 1, 1 end
  if n == 1 then return shape[1], shape[1] end
  local field = 1
  for i = 1, n - 2 do field = field * shape[i] end
  return shape[n - 1] * field, shape[n] * field
end

-- Standard deviation of a standard normal cut at 2.
local TRUNCATED_STDDEV = 0.87962566103423978

local function scaled(scale, mode, distribution, shape)
  local fan_in, fan_out = fans(shape)
  local fan = mode == "fan_in" and fan_in or mode == "fan_out" and fan_out or (fan_in + fan_out) / 2
  scale = scale / math.max(1, fan)
  if distribution == "uniform" then
    local limit = math.sqrt(3 * scale)
    return { kind = "uniform", a = -limit, b = limit }
  end
  if distribution == "untruncated_normal" then return { kind = "normal", a = 0, b = math.sqrt(scale) } end
  return { kind = "truncated_normal", a = 0, b = math.sqrt(scale) / TRUNCATED_STDDEV }
end

local modes = { fan_in = true, fan_out = true, fan_avg = true }
local distributions = { uniform = true, truncated_normal = true, untruncated_normal = true, normal = true }

define("VarianceScaling",
  { "seed", scale = 1, mode = "fan_in", distribution = "truncated_normal" },
  function(o, shape)
    options.number("VarianceScaling", "scale", o.scale, 0)
    if not modes[o.mode] then
      options.unknown("VarianceScaling", "mode", o.mode, { "fan_in", "fan_out", "fan_avg" })
    end
    if not distributions[o.distribution] then
      options.unknown("VarianceScaling", "distribution", o.distribution,
        { "uniform", "truncated_normal", "untruncated_normal" })
    end
    return scaled(o.scale, o.mode, o.distribution, shape)
  end)

for name, how in pairs {
  GlorotUniform = { 1, "fan_avg", "uniform" }, GlorotNormal = { 1, "fan_avg", "normal" },
  HeUniform = { 2, "fan_in", "uniform" }, HeNormal = { 2, "fan_in", "normal" },
  LecunUniform = { 1, "fan_in", "uniform" }, LecunNormal = { 1, "fan_in", "normal" },
} do
  define(name, { "seed" }, function(_, shape) return scaled(how[1], how[2], how[3], shape) end)
end

local function matrix(name, shape)
  if #shape < 2 then
    errors.raise("invalid_argument", "%s: the shape needs two axes at least, got %d", name, #shape)
  end
end

define("Identity", { gain = 1 }, nil, function(o, shape, dtype)
  matrix("Identity", shape)
  if #shape > 2 then
    errors.raise("invalid_argument", "Identity makes matrices, not a shape of %d axes", #shape)
  end
  return tm.eye(shape[1], shape[2], { dtype = dtype }) * o.gain
end)

--- Orthonormal rows of a list of rows (modified Gram-Schmidt; rows <= columns).
local function orthonormal(rows)
  for i, r in ipairs(rows) do
    for j = 1, i - 1 do
      local q, dot = rows[j], 0
      for k = 1, #r do dot = dot + r[k] * q[k] end
      for k = 1, #r do r[k] = r[k] - dot * q[k] end
    end
    local norm = 0
    for k = 1, #r do norm = norm + r[k] * r[k] end
    norm = math.sqrt(norm)
    for k = 1, #r do r[k] = r[k] / norm end
  end
  return rows
end

define("Orthogonal", { "seed", gain = 1 }, nil, function(o, shape, dtype)
  matrix("Orthogonal", shape)
  local rows, cols = 1, shape[#shape]
  for i = 1, #shape - 1 do rows = rows * shape[i] end
  local wide = rows <= cols
  local small, large = math.min(rows, cols), math.max(rows, cols)
  local normal = M.RandomNormal { mean = 0, stddev = 1, seed = o.seed }({ small, large }, "float64")
  local q = tm.tensor(orthonormal(normal:totable()), "float64")
  if not wide then q = tm.transpose(q) end
  return tm.cast(tm.reshape(q, shape) * o.gain, dtype)
end)

--- "glorot_uniform", a number, a function or an object.
local get = options.getter("initializer", classes, {
  uniform = "RandomUniform", normal = "RandomNormal", zero = "Zeros", one = "Ones",
})

function M.get(x)
  if type(x) == "number" then return M.Constant { value = x } end
  return get(x)
end

return M
