--- Layers that prepare numbers: Normalization, Discretization, CategoryEncoding.

local Layer = require "tidemill.layers.base"
local core = require "tidemill.core"
local encode = require "tidemill.layers.encode"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local EPSILON = 1e-7

-- --- Normalization ---

--- Normalization{ axis = -1, mean, variance, invert }: (x - mean) / sqrt(variance), for
--- each position of the axis; axis = false for one mean of everything.
---@class tm.layers.Normalization : tm.layers.Layer
M.Normalization = Layer:extend("Normalization")

function M.Normalization:init(given)
  local o = self:options(given, { "mean", "variance", axis = -1, invert = false })
  if (o.mean == nil) ~= (o.variance == nil) then
    errors.raise("invalid_argument", "Normalization: mean and variance are given together")
  end
  self.axis, self.invert = o.axis, o.invert
  rawset(self, "mean", o.mean)
  rawset(self, "variance", o.variance)
end

--- Axes to average over: all but `axis`; numbers without axes are a batch of scalars.
local function other_axes(self, x)
  local keep = self.axis
  if not keep then return nil end
  local rank = #x.shape
  if keep < 0 then keep = rank + 1 + keep end
  if keep < 1 or keep > rank then
    errors.raise("invalid_argument", "%s: axis %d of a tensor of %d axes%s", self.name, self.axis, rank,
      rank == 0 and "; adapt takes batches: ds:batch(32)" or "")
  end
  local axes = {}
  for i = 1, rank do
    if i ~= keep then axes[#axes + 1] = i end
  end
  return axes
end

--- Learn mean and variance, in float64 and by batches (Chan, Golub and LeVeque 1979).
function M.Normalization:adapt(ds)
  local spec = type(ds) == "table" and ds.element_spec
  if self.axis and spec and spec.shape and #spec.shape == 1 and spec.shape[1] == -1 then
    errors.raise("invalid_argument", "%s: the dataset gives batches of numbers, which have no axis %d: make it "
      .. "Normalization{ axis = false }, or batches of vectors of one, tm.expand_dims(x, 1) before batch", self.name,
      self.axis)
  end
  local n, mean, m2 = 0, nil, nil
  encode.each("Normalization", ds, "float32", function(x)
    x = tm.cast(x, "float64")
    if #x.shape == 1 and self.axis then x = tm.expand_dims(x, 1) end
    local axes = other_axes(self, x)
    local kept = axes and x.shape[self.axis < 0 and #x.shape + 1 + self.axis or self.axis] or 1
    local k = values.count(x.shape) / kept
    if k == 0 then return end
    local batch_mean = tm.reduce_mean(x, axes, { keepdims = true })
    local batch_m2 = tm.reduce_sum(tm.square(x - batch_mean), axes)
    batch_mean = tm.reduce_mean(x, axes)
    if n == 0 then
      mean, m2 = batch_mean, batch_m2
    else
      local d = batch_mean - mean
      mean = mean + d * (k / (n + k))
      m2 = m2 + batch_m2 + tm.square(d) * (n * k / (n + k))
    end
    n = n + k
  end)
  if n == 0 then errors.raise("invalid_argument", "Normalization: adapt was given no data") end
  rawset(self, "mean", tm.cast(mean, "float32"))
  rawset(self, "variance", tm.cast(m2 / n, "float32"))
end

--- What checkpoints keep of the layer.
M.Normalization.adapted = { "mean", "variance" }

function M.Normalization:get_adapted(key)
  return self[key] ~= nil and core.eagerly(values.tensor, self[key], "float32") or nil
end

function M.Normalization:set_adapted(key, x) rawset(self, key, x) end

--- A statistic as x needs it: along the axis, whatever stands behind it.
local function spread(self, statistic, x)
  local s = core.eagerly(values.tensor, statistic, "float32")
  if not self.axis or #s.shape == 0 then return s end
  local keep = self.axis < 0 and #x.shape + 1 + self.axis or self.axis
  local shape = {}
  for i = 1, #x.shape - keep + 1 do shape[i] = i == 1 and -1 or 1 end
  return tm.reshape(s, shape)
end

function M.Normalization:call(x)
  if self.mean == nil then
    errors.raise("failed_precondition", "%s has no mean; give mean and variance or call adapt(dataset)", self.name)
  end
  x = values.cast(x, "float32")
  local mean = spread(self, self.mean, x)
  local deviation = tm.maximum(tm.sqrt(spread(self, self.variance, x)), EPSILON)
  if self.invert then return mean + x * deviation end
  return (x - mean) / deviation
end

-- --- Discretization ---

--- Discretization{ bin_boundaries } or { num_bins } and adapt: the number of boundaries
--- that are not above x, an int64.
---@class tm.layers.Discretization : tm.layers.Layer
M.Discretization = Layer:extend("Discretization")

function M.Discretization:init(given)
  local o = self:options(given, { "bin_boundaries", "num_bins", output_mode = "int" })
  if (o.bin_boundaries == nil) == (o.num_bins == nil) then
    errors.raise("invalid_argument", "Discretization needs bin_boundaries or num_bins, one of them")
  end
  encode.check("Discretization", o.output_mode, { "int", "one_hot", "multi_hot", "count" })
  self.num_bins = o.num_bins and options.count("Discretization", "num_bins", o.num_bins, 1)
  self.output_mode = o.output_mode
  if o.bin_boundaries then
    for i, b in ipairs(o.bin_boundaries) do
      options.number("Discretization", "a boundary", b)
      if i > 1 and b <= o.bin_boundaries[i - 1] then
        errors.raise("invalid_argument", "Discretization: bin_boundaries must ascend; number %d does not", i)
      end
    end
  end
  self.bin_boundaries = o.bin_boundaries
end

-- Values kept for the quantiles: a larger set is thinned to every second one.
local MAX_SAMPLE = 1048576

--- Learn boundaries that put as many values into each bin: exact quantiles up to a
--- million values, of an even sample beyond.
function M.Discretization:adapt(ds)
  if not self.num_bins then
    errors.raise("failed_precondition", "Discretization: adapt needs num_bins")
  end
  local sample, stride, seen = {}, 1, 0
  encode.each("Discretization", ds, "float32", function(x)
    for _, v in ipairs(tm.reshape(tm.cast(x, "float32"), { -1 }):totable()) do
      if seen % stride == 0 then sample[#sample + 1] = v end
      seen = seen + 1
      if #sample > MAX_SAMPLE then
        local half = {}
        for i = 1, #sample, 2 do half[#half + 1] = sample[i] end
        sample, stride = half, stride * 2
      end
    end
  end)
  if #sample == 0 then errors.raise("invalid_argument", "Discretization: adapt was given no data") end
  table.sort(sample)
  local bounds = {}
  for k = 1, self.num_bins - 1 do
    local b = sample[math.max(1, math.ceil(k * #sample / self.num_bins))]
    if #bounds == 0 or b > bounds[#bounds] then bounds[#bounds + 1] = b end
  end
  self.bin_boundaries = bounds
end

M.Discretization.adapted = { "bin_boundaries" }
M.Discretization.adapted_in_config = true -- it is made with them, or with num_bins

function M.Discretization:get_adapted()
  local list = self.bin_boundaries
  if not list then return nil end
  return core.eagerly(function() return #list == 0 and tm.zeros({ 0 }, "float64") or tm.tensor(list, "float64") end)
end

function M.Discretization:set_adapted(_, x) self.bin_boundaries = x:totable() end

function M.Discretization:call(x)
  if not self.bin_boundaries then
    errors.raise("failed_precondition", "%s has no boundaries; call adapt(dataset)", self.name)
  end
  local ids = core.ops.bucketize(x, { boundaries = self.bin_boundaries })
  if self.output_mode == "int" then return ids end
  return encode.apply(ids, #self.bin_boundaries + 1, self.output_mode)
end

-- --- CategoryEncoding ---

--- CategoryEncoding{ num_tokens, output_mode = "multi_hot" | "one_hot" | "count" }; in
--- count mode the input may be { ids, weights }.
---@class tm.layers.CategoryEncoding : tm.layers.Layer
M.CategoryEncoding = Layer:extend("CategoryEncoding")

M.CategoryEncoding.input_dtype = "int64"

function M.CategoryEncoding:init(given)
  local o = self:options(given, { "num_tokens", output_mode = "multi_hot" })
  self.num_tokens = options.count("CategoryEncoding", "num_tokens",
    options.need("CategoryEncoding", o, "num_tokens"), 1)
  self.output_mode = o.output_mode
  encode.check("CategoryEncoding", o.output_mode, { "one_hot", "multi_hot", "count" })
end

function M.CategoryEncoding:call(x)
  local ids, weights = x, nil
  if type(x) == "table" and getmetatable(x) == nil then ids, weights = x[1], x[2] end
  if weights ~= nil and self.output_mode ~= "count" then
    errors.raise("invalid_argument", '%s: weights are for output_mode = "count"', self.name)
  end
  ids = values.cast(ids, "int64")
  local inside = tm.logical_and(tm.greater_equal(ids, 0), tm.less(ids, self.num_tokens))
  tm.assert_true(tm.reduce_all(inside), ("%s: ids must be from 0 to %d"):format(self.name, self.num_tokens - 1))
  return encode.apply(ids, self.num_tokens, self.output_mode, weights)
end

return M
