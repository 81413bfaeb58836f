-- Evaluation while workers are killed: metrics must count every example once, each time.
--
-- usage: tidemill spec/chaos/evaluate.lua [SEED [KILLS]]
--   starts 3 workers and 2 ps, evaluates again and again, kills workers as the seed says
--   until KILLS are done, and compares every evaluation with one in a single process:
--   counts bit by bit, means to 1e-6.
--
-- As a module: run{ strategy, kills, seed, kill = function(index) } gives
-- { kills, evaluations, retries, wrong = { text ... } }.

local tm = require "tidemill"

local M = {}

local ROWS, BATCH = 600, 6

--- A generator of its own, so that a seed means the same everywhere (LuaJIT has no 64-bit
--- integers: Lehmer's).
local function generator(seed)
  local state = seed * 2654435 % 2147483647 + 1
  return function()
    state = state * 16807 % 2147483647
    return state / 2147483647
  end
end

local Confusion = tm.metrics.Metric:extend("Confusion")
function Confusion:init(given)
  self:options(given)
  self.counts = self:add_weight { name = "counts", shape = { 4 }, dtype = "int64" } end
function Confusion:update_state(y_true, y_pred)
  local guess = tm.cast(tm.greater(y_pred, 0.5), "int64")
  local cell = tm.reshape(guess * 2 + tm.cast(y_true, "int64"), { -1 })
  self.counts:scatter_add(cell, tm.ones_like(cell))
end
function Confusion:result() return tm.reduce_sum(self.counts) end

--- The model; `pause`: seconds that a batch takes.
local function build(pause)
  local confusion = Confusion { name = "confusion" }
  local model = tm.Sequential {
    tm.layers.Lambda(function(x)
      if pause then tm.sleep(pause) end
      return x
    end),
    tm.layers.Dense { units = 1, activation = "sigmoid",
      kernel_initializer = tm.initializers.GlorotUniform { seed = 7 } },
  }
  model:compile { optimizer = "sgd", loss = "binary_crossentropy",
    metrics = { "accuracy", "mse", tm.metrics.Precision { name = "precision" }, confusion } }
  return model, confusion
end

local function data()
  local x = tm.random.normal({ ROWS, 5 }, { seed = 11 })
  local y = tm.cast(tm.greater(tm.reduce_sum(x, 2), 0.2), "float32")
  return tm.data.from_tensor_slices { x, tm.expand_dims(y, 2) }:batch(BATCH)
end

local function same(list) return table.concat(list, ",") end

--- Compare one evaluation with what it must be.
local function compare(wrong, got, counts, want, want_counts)
  if same(counts) ~= same(want_counts) then
    wrong[#wrong + 1] = ("counts are %s, not %s"):format(same(counts), same(want_counts))
  end
  for name, x in pairs(want) do
    if not got[name] or math.abs(got[name] - x) > 1e-6 then
      wrong[#wrong + 1] = ("%s is %s, not %.9g"):format(name, tostring(got[name]), x)
    end
  end
end

function M.run(o)
  local random, workers = generator(o.seed), o.strategy.num_workers
  local plain, plain_counts = build()
  local want = plain:evaluate(data(), { verbose = 0 })
  local want_counts = plain_counts.counts:read():totable()
  local model, confusion = o.strategy:scope(function()
    local m, c = build(0.001)
    return m, c
  end)
  local report = { kills = 0, evaluations = 0, wrong = {} }
  local batches = ROWS / BATCH
  while report.kills < o.kills do
    local due = math.floor(random() * (batches - 10)) + 1
    local killer = { on_test_batch_end = function(_, batch)
      if batch ~= due then return end
      o.kill(math.floor(random() * workers))
      report.kills = report.kills + 1
    end }
    local got = model:evaluate(data(), { callbacks = { killer }, verbose = 0 })
    compare(report.wrong, got, confusion.counts:read():totable(), want, want_counts)
    report.evaluations = report.evaluations + 1
  end
  report.retries = o.strategy:_get_coordinator():stats().retries
  return report
end

if arg and arg[0] and arg[0]:find "chaos/evaluate.lua$" and not package.loaded.busted then
  local P, tasks = dofile "spec/tools/process.lua", dofile "spec/tools/tasks.lua"
  local D = tm.distribute
  local seed, kills = tonumber(arg[1] or 1), tonumber(arg[2] or 200)
  local T = tasks.new(P, { workers = 3, ps = 2 }):start()
  local strategy = D.ParameterServerStrategy(D.SimpleClusterResolver(D.ClusterSpec(T.jobs), { task_type = "chief" }),
    { heartbeat_interval = 0.2, heartbeat_timeout = 1 })
  local began = P.now()
  local report = M.run { strategy = strategy, kills = kills, seed = seed, kill = function(i)
    T.worker[i + 1]:kill()
    assert(T.worker[i + 1]:wait(5))
    T:task("worker", i)
  end }
  strategy:close()
  local left = P.cleanup()
  print(("seed %d: %d kills in %d evaluations, %d closures ran again, %.0f s"):format(seed, report.kills,
    report.evaluations, report.retries, P.now() - began))
  for _, text in ipairs(report.wrong) do print("NOT OK  " .. text) end
  for _, command in ipairs(left) do print("NOT OK  left behind: " .. command) end
  local fine = #report.wrong == 0 and #left == 0
  print(("%d passed, %d failed"):format(fine and 1 or 0, fine and 0 or 1))
  os.exit(fine)
end

return M
