-- Forward and backward of a convolution, a pool and BatchNormalization, traced: milliseconds and
-- GFLOP/s; OPENBLAS_NUM_THREADS says how many threads.  usage: conv.lua [cpu]
-- cpu: by the processor's time, for a machine that is not idle.
local here = arg[0]:match "^(.*/)" or "./"
local lib = dofile(here .. "lib.lua")
local tm = require "tidemill"
local clock = arg[1] == "cpu" and os.clock or tm.time

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
    local n, t = 0, clock()
    repeat
      fn()
      n = n + 1
    until clock() - t > 0.15
    best = math.min(best, (clock() - t) / n)
  end
  return best
end

--- fn(x), traced.
local function call(fn, x)
  local f = tm.func(fn)
  return function() return f(x) end
end

for _, s in ipairs(shapes) do
  local n, h, w, c, co, k, stride = lib.unpack(s)
  local x, f = tm.random.normal { n, h, w, c }, tm.Variable(tm.random.normal { k, k, c, co })
  local how = { strides = stride, padding = "same" }
  local y = tm.nn.conv2d(x, f, how)
  local work = 2 * y.shape[1] * y.shape[2] * y.shape[3] * co * k * k * c
  local forward = least(call(function(a) return tm.reduce_sum(tm.nn.conv2d(a, f, how)) end, x))
  local all = least(call(function(a)
    local tape = tm.GradientTape()
    tape:watch(a)
    local g = tape:gradient(tm.reduce_sum(tm.nn.conv2d(a, f, how)), { a, f })
    return tm.reduce_sum(g[1]), g[2] -- a result of its own memory would be measured too
  end, x))
  lib.result { { "bench", "conv" }, { "shape", ("%dx%dx%dx%d-%d k%d s%d"):format(n, h, w, c, co, k, stride) },
    { "forward_ms", 1e3 * forward }, { "all_ms", 1e3 * all }, { "forward_gflops", work / forward / 1e9 },
    { "all_gflops", 3 * work / all / 1e9 } }
end

local x = tm.random.normal { 64, 28, 28, 32 }

local function through(name, fn, sources)
  local f = call(function(a)
    local tape = tm.GradientTape()
    tape:watch(a)
    local g = tape:gradient(tm.reduce_sum(fn(a)), sources and { a, sources.gamma, sources.beta } or { a })
    if not sources then return tm.reduce_sum(g[1]) end
    return tm.reduce_sum(g[1]), g[2], g[3]
  end, x)
  lib.result { { "bench", name }, { "shape", "64x28x28x32" }, { "all_ms", 1e3 * least(f) } }
end

for _, name in ipairs { "max_pool2d", "avg_pool2d" } do
  through(name, function(a) return tm.nn[name](a, 2) end)
end
local norm = tm.layers.BatchNormalization()
norm(x)
through("batch_norm", function(a) return norm(a, { training = true }) end, norm)
