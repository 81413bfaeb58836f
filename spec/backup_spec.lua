-- BackupAndRestore: kill -9 of a script, the same script again.  Real processes.
local P = dofile "spec/tools/process.lua"

--- A fit of 3 epochs of 8 steps, with everything in it that chance orders; it kills itself
--- after KILL batches and prints what came of it.
local script = [[
local tm = require "tidemill"
local DIR, FREQ, KILL = os.getenv "DIR", tonumber(os.getenv "FREQ"), tonumber(os.getenv "KILL")
local C = tm.callbacks
local x = tm.random.normal({ 60, 4 }, { seed = 1 })
local y = tm.matmul(x, tm.tensor { { 1 }, { 2 }, { 3 }, { 4 } })
tm.random.set_seed(5)
local model = tm.Sequential { tm.layers.Dense { units = 8, activation = "relu" }, tm.layers.Dropout(0.3),
  tm.layers.Dense { units = 1 } }
model:compile { optimizer = tm.optimizers.Adam { learning_rate = 0.01 }, loss = "mse", metrics = { "mae" } }
local batches = 0
local preempted = os.getenv "PREEMPT" ~= nil
local backup = C.BackupAndRestore(DIR .. "/backup", { save_freq = not preempted and (FREQ or "epoch"),
  save_before_preemption = preempted })
local function hit()
  batches = batches + 1
  if batches ~= KILL then return end
  os.execute(preempted and "kill -TERM $PPID" or "kill -9 $PPID")
  while not backup._urgent do -- until it knows
    tm.sleep(0.005)
    require("tidemill.distribute.wait").heed()
  end
end
local counter = { n = 0, on_batch_end = function(cb) cb.n = cb.n + 1 end,
  get_state = function(cb) return { n = cb.n } end, set_state = function(cb, s) cb.n = s.n end }
local killer = { [os.getenv "IN" or "on_train_batch_end"] = hit }
local h = model:fit(x, { y = y, epochs = 3, batch_size = 6, validation_split = 0.2, verbose = 0, callbacks = {
  backup, killer, counter,
  C.CSVLogger(DIR .. "/log.csv"), C.LearningRateScheduler(function(_, rate) return rate * 0.9 end),
  C.EarlyStopping { monitor = "val_loss", patience = 3, restore_best_weights = true },
  C.ReduceLROnPlateau { monitor = "loss", patience = 1, min_delta = 5, factor = 0.5 } } })
for i, epoch in ipairs(h.epoch) do
  print(("%d %.17g %.17g %.17g %.17g"):format(epoch, h.loss[i], h.mae[i], h.val_loss[i], h.lr[i]))
end
for _, w in ipairs(model.weights) do print(("%.17g"):format(tm.reduce_sum(w:read()):item())) end
print(model.optimizer.iterations:read():item(), counter.n)
local f = io.open(DIR .. "/log.csv")
print(f:read "*a")
f:close()
]]

local reference

local function run(dir, freq, kill, preempt, hook)
  return P.run({ P.script(script) }, { DIR = dir, FREQ = freq, KILL = kill, PREEMPT = preempt, IN = hook })
end

local function ends(p)
  assert.equal(0, p:wait(30), p:err())
  return p:out()
end

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

describe("BackupAndRestore", function()
  before_each(function() reference = reference or ends(run(P.dir(), "epoch", "0")) end)
  after_each(function() assert.same({}, P.cleanup()) end)

  for _, case in ipairs { { "epoch", { 1, 20 } }, { "epoch", { 15 } }, { "epoch", { 17, 5 } }, { "3", { 4, 5, 11 } },
    { "1", { 1, 9, 2 } }, { "5", { 23 } } } do
    local freq, kills = case[1], case[2]
    it(("save_freq = %s: killed after %s batches and run again, a fit is bit for bit what it is unkilled"):format(freq,
      table.concat(kills, ", then ")), function()
      local dir = P.dir()
      for _, n in ipairs(kills) do assert.equal(137, run(dir, freq, tostring(n)):wait(30)) end
      assert.equal(reference, ends(run(dir, freq, "0")))
      assert.is_false(exists(dir .. "/backup"))
    end)
  end

  it("killed at whatever moment, also while it saves, it is bit for bit what it is unkilled", function()
    local dir, random = P.dir(), 7
    local done
    for _ = 1, 12 do
      local p = run(dir, "1", "0")
      random = random * 16807 % 2147483647 -- Park and Miller's
      P.sleep(0.02 + 0.15 * random / 2147483647)
      p:kill()
      done = p:wait(30) == 0 and p:out() or nil
      if done then break end
    end
    assert.equal(reference, done or ends(run(dir, "1", "0")))
  end)

  it("save_before_preemption: SIGTERM saves, ends the script, and the next run goes on there", function()
    local dir = P.dir()
    local p = run(dir, "0", "11", "yes")
    assert.equal(143, p:wait(30), p:err())
    assert.matches("BackupAndRestore: .*SIGTERM.*saved", p:err())
    assert.equal(reference, ends(run(dir, "0", "0", "yes")))
    assert.equal(reference, ends(run(P.dir(), "0", "0", "yes")))
  end)

  it("SIGTERM in the middle of a validation saves, and the next run validates again", function()
    local dir = P.dir()
    local p = run(dir, "0", "3", "yes", "on_test_batch_end") -- two batches an epoch
    assert.equal(143, p:wait(30), p:err())
    assert.equal(reference, ends(run(dir, "0", "0", "yes")))
  end)

  it("a backup of another model is refused, naming it and the remedy", function()
    local dir = P.dir()
    assert.equal(137, run(dir, "2", "3"):wait(30))
    local p = P.run({ P.script((script:gsub("units = 8", "units = 9"))) }, { DIR = dir, FREQ = "2" })
    assert.equal(1, p:wait(30))
    assert.matches('BackupAndRestore: the backup ".*/backup/backup%-1" does not fit: .*delete it to begin anew',
      p:err())
  end)
end)

describe("the options of BackupAndRestore", function()
  local tm = require "tidemill"

  it("a directory that cannot be written ends the fit with a clear error", function()
    local f = os.tmpname()
    local model = tm.Sequential { tm.layers.Dense { units = 1, input_shape = { 1 } } }
    model:compile { loss = "mse" }
    local ok, err = pcall(model.fit, model, tm.zeros { 2, 1 }, { y = tm.zeros { 2, 1 }, verbose = 0,
      callbacks = { tm.callbacks.BackupAndRestore(f) } })
    os.remove(f)
    assert.is_false(ok)
    assert.matches("BackupAndRestore: no backup in \"" .. f, tostring(err))
  end)

  it("one that would never save is refused", function()
    local ok, err = pcall(tm.callbacks.BackupAndRestore, "x", { save_freq = false })
    assert.is_false(ok)
    assert(tm.is_error(err, "invalid_argument"))
    assert.matches("it would never save", tostring(err))
  end)
end)
