--- Layers without weights that shrink, grow or pad images: pools, UpSampling2D,
--- ZeroPadding2D.  Channels are the last axis.

local Layer = require "tidemill.layers.base"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local windows = require "tidemill.layers.windows"
local tm = require "tidemill.lib.lazy"

local M = {}

--- NAME{ pool_size = 2, strides = pool_size, padding = "valid" | "same" }.
local function pool(name, rank, op)
  local Pool = Layer:extend(name)

  function Pool:init(given)
    local o = self:options(given, { "strides", "data_format", pool_size = 2, padding = "valid" })
    self.pool_size = windows.sizes(self, "pool_size", o.pool_size, rank)
    self.strides = windows.sizes(self, "strides", o.strides or o.pool_size, rank)
    self.padding = windows.padding(self, o.padding, { "valid", "same" })
    self.data_format = windows.format(self, o.data_format)
  end

  function Pool:call(x)
    windows.channels(self, x.shape, rank)
    local size, strides = self.pool_size, self.strides
    if rank == 2 then return tm.nn[op](x, size, strides, self.padding) end
    local image = tm.expand_dims(x, 2)
    return tm.squeeze(tm.nn[op](image, { 1, size[1] }, { 1, strides[1] }, self.padding), 2)
  end

  return Pool
end

---@class tm.layers.MaxPooling1D : tm.layers.Layer
M.MaxPooling1D = pool("MaxPooling1D", 1, "max_pool2d")
---@class tm.layers.AveragePooling1D : tm.layers.Layer
M.AveragePooling1D = pool("AveragePooling1D", 1, "avg_pool2d")
---@class tm.layers.MaxPooling2D : tm.layers.Layer
M.MaxPooling2D = pool("MaxPooling2D", 2, "max_pool2d")
---@class tm.layers.AveragePooling2D : tm.layers.Layer
M.AveragePooling2D = pool("AveragePooling2D", 2, "avg_pool2d")

--- NAME{ keepdims = false }: one value a channel.
local function global(name, rank, reduce)
  local Pool = Layer:extend(name)

  function Pool:init(given)
    local o = self:options(given, { "data_format", keepdims = false })
    self.keepdims = options.flag(name, "keepdims", o.keepdims)
    self.data_format = windows.format(self, o.data_format)
  end

  function Pool:call(x)
    windows.channels(self, x.shape, rank)
    return tm[reduce](x, rank == 1 and { 2 } or { 2, 3 }, { keepdims = self.keepdims })
  end

  return Pool
end

---@class tm.layers.GlobalAveragePooling1D : tm.layers.Layer
M.GlobalAveragePooling1D = global("GlobalAveragePooling1D", 1, "reduce_mean")
---@class tm.layers.GlobalMaxPooling1D : tm.layers.Layer
M.GlobalMaxPooling1D = global("GlobalMaxPooling1D", 1, "reduce_max")
---@class tm.layers.GlobalAveragePooling2D : tm.layers.Layer
M.GlobalAveragePooling2D = global("GlobalAveragePooling2D", 2, "reduce_mean")
---@class tm.layers.GlobalMaxPooling2D : tm.layers.Layer
M.GlobalMaxPooling2D = global("GlobalMaxPooling2D", 2, "reduce_max")

--- UpSampling2D{ size = 2 }: each pixel size[1] times size[2] times.
---@class tm.layers.UpSampling2D : tm.layers.Layer
M.UpSampling2D = Layer:extend("UpSampling2D")

function M.UpSampling2D:init(given)
  local o = self:options(given, { "data_format", size = 2, interpolation = "nearest" })
  self.size = windows.sizes(self, "size", o.size, 2)
  self.data_format = windows.format(self, o.data_format)
  if o.interpolation ~= "nearest" then
    errors.raise("unimplemented", '%s: interpolation is "nearest" only, got %s', self.name, tostring(o.interpolation))
  end
  self.interpolation = o.interpolation
end

function M.UpSampling2D:call(x)
  local n, s = windows.channels(self, x.shape, 2), x.shape
  if s[2] == -1 or s[3] == -1 or n == -1 then
    errors.raise("invalid_argument", "%s: height, width and channels must be known", self.name)
  end
  local up, across = self.size[1], self.size[2]
  local y = tm.tile(tm.reshape(x, { -1, s[2], 1, s[3], 1, n }), { 1, 1, up, 1, across, 1 })
  return tm.reshape(y, { s[1] == -1 and -1 or s[1], s[2] * up, s[3] * across, n })
end

--- ZeroPadding2D{ padding = 1 }, { height, width } or { { top, bottom }, { left, right } }.
---@class tm.layers.ZeroPadding2D : tm.layers.Layer
M.ZeroPadding2D = Layer:extend("ZeroPadding2D")

function M.ZeroPadding2D:init(given)
  local o = self:options(given, { "data_format", padding = 1 })
  local p = type(o.padding) == "table" and o.padding or { o.padding, o.padding }
  if #p ~= 2 then errors.raise("invalid_argument", "%s: padding is for two axes, got %d", self.name, #p) end
  local out = {}
  for i = 1, 2 do
    local pair = type(p[i]) == "table" and p[i] or { p[i], p[i] }
    out[i] = { options.count(self.name, "padding", pair[1], 0), options.count(self.name, "padding", pair[2], 0) }
  end
  self.padding, self.data_format = out, windows.format(self, o.data_format)
end

function M.ZeroPadding2D:call(x)
  windows.channels(self, x.shape, 2)
  return tm.pad(x, { { 0, 0 }, self.padding[1], self.padding[2], { 0, 0 } })
end

return M
