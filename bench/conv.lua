-- Forward and backward of a convolution, a pool and BatchNormalization, eagerly: milliseconds and
-- GFLOP/s; OPENBLAS_NUM_THREADS says how many threads.  usage: conv.lua
local here = arg[0]:match "^(.*/)" or "./"
local lib = dofile(here .. "lib.lua")
local tm = require "tidemill"

-- batch, height, width, channels in, out, size, stride
local shapes = {
  { 64, 28, 28, 1, 32, 3, 1 }, { 64, 14, 14, 32, 64, 3, 1 }, { 32, 32, 32, 64, 64, 3, 1 },
  { 32, 16, 16, 128, 128, 3, 1 }, { 16, 56, 56, 64, 64, 1, 1 }, { 8, 112, 112, 3, 32, 7, 2 },
}

--- The least time of one call, of several rounds.
local function least(fn)
  local best = math.huge
  fn()
  for _ = 1, 5 do
    local n, t = 0, tm.time()
    repeat
      fn()
      n = n + 1
    until tm.time() - t > 0.15
    best = math.min(best, (tm.time() - t) / n)
  end
  return best
end

for _, s in ipairs(shapes) do
  local n, h, w, c, co, k, stride = lib.unpack(s)
  local x, f = tm.random.normal { n, h, w, c }, tm.Variable(tm.random.normal { k, k, c, co })
  local how = { strides = stride, padding = "same" }
  local y = tm.nn.conv2d(x, f, how)
  local work = 2 * y.shape[1] * y.shape[2] * y.shape[3] * co * k * k * c
  local forward = least(function() tm.nn.conv2d(x, f, how) end)
  local all = least(function()
    local tape = tm.GradientTape()
    tape:watch(x)
    local out = tm.reduce_sum(tm.nn.conv2d(x, f, how))
    tape:gradient(out, { x, f })
  end)
  lib.result { { "bench", "conv" }, { "shape", ("%dx%dx%dx%d-%d k%d s%d"):format(n, h, w, c, co, k, stride) },
    { "forward_ms", 1e3 * forward }, { "all_ms", 1e3 * all }, { "forward_gflops", work / forward / 1e9 },
    { "all_gflops", 3 * work / all / 1e9 } }
end

local x = tm.random.normal { 64, 28, 28, 32 }
for _, kind in ipairs { "max_pool2d", "avg_pool2d" } do
  lib.result { { "bench", kind }, { "shape", "64x28x28x32 2x2" }, { "all_ms", 1e3 * least(function()
    local tape = tm.GradientTape()
    tape:watch(x)
    tape:gradient(tm.reduce_sum(tm.nn[kind](x, 2)), x)
  end) } }
end
local norm = tm.layers.BatchNormalization()
lib.result { { "bench", "batch_norm" }, { "shape", "64x28x28x32" }, { "all_ms", 1e3 * least(function()
  local tape = tm.GradientTape()
  tape:watch(x)
  tape:gradient(tm.reduce_sum(norm(x, { training = true })), { x, norm.gamma, norm.beta })
end) } }
