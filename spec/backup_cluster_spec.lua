-- BackupAndRestore on a cluster: kill -9 of the chief, the same script again.  Real processes.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P

--- 240 examples, each marked when a step has it; a fit of 3 epochs of 60 batches (or of
--- STEPS) that kills itself after KILL batches where no file "killed" forbids it.
local script = [[
local tm = require "tidemill"
local DIR = os.getenv "DIR"
local KILL, STEPS = KILLED, STEPS_PER_EPOCH
local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 2, ps = 2 })
local C, model = tm.callbacks, nil
strategy:scope(function()
  model = tm.Sequential { tm.layers.Dense { units = 8, activation = "relu", input_shape = { 4 } },
    tm.layers.Dense { units = 1 } }
  model.seen = tm.Variable(tm.zeros({ 240 }, "int64"), { name = "seen", trainable = false })
  function model:train_step(data)
    self.seen:scatter_add(data[1].id, tm.ones({ 4 }, "int64"))
    return tm.Model.train_step(self, { data[1].x, data[2] })
  end
  model:compile { optimizer = tm.optimizers.SGD { learning_rate = 0.001 }, loss = "mse" }
end)
local x = tm.random.normal({ 240, 4 }, { seed = 1 })
local y = tm.matmul(x, tm.tensor { { 1 }, { 2 }, { 3 }, { 4 } })
local ds = tm.data.from_tensor_slices { { id = tm.range(240), x = x }, y }
ds = STEPS and ds:batch(4):rep() or ds:shuffle(240):batch(4)
local n = 0
local h = model:fit(ds, { epochs = 3, verbose = 0, steps_per_epoch = STEPS, callbacks = {
  C.BackupAndRestore(DIR .. "/backup", { save_freq = FREQUENCY }), C.CSVLogger(DIR .. "/log.csv"),
  { on_train_batch_end = function()
    n = n + 1
    if n ~= KILL or io.open(DIR .. "/killed") then return end
    if not STEPS then io.open(DIR .. "/killed", "w") end
    os.execute "kill -9 $PPID"
    tm.sleep(60)
  end },
} })
local times = {}
for _, k in ipairs(model.seen:read():totable()) do times[k] = (times[k] or 0) + 1 end
for k, examples in pairs(times) do print(examples .. " examples were seen " .. k .. " times") end
print(#h.loss .. " epochs, " .. model.optimizer.iterations:read():item() .. " steps, " .. (n < 180 and "in two runs" or
  "in one run"))
for line in io.lines(DIR .. "/log.csv") do print(line:match "^%w+") end
]]

local function text(freq, kill, steps)
  return (script:gsub("FREQUENCY", freq):gsub("KILLED", kill):gsub("STEPS_PER_EPOCH", steps))
end

local epochs = "240 examples were seen 3 times\n3 epochs, 180 steps, in two runs\nepoch\n1\n2\n3\n"

describe("BackupAndRestore on a cluster", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("under launch --restart-chief every example is seen once an epoch, though the chief was killed", function()
    for _, case in ipairs { { "7", "70" }, { '"epoch"', "60" } } do
      local dir = P.dir()
      local p = P.run({ "launch", "--workers", "2", "--ps", "2", "--restart-chief", P.script(text(case[1], case[2],
        "nil")) }, { DIR = dir })
      assert.equal(0, p:wait(60), p:err())
      assert.matches("ended %(signal 9%); starting it again", p:err())
      -- Killed after 70 batches, it goes on at 70; after 60, in the first epoch's last hook, at 0.
      assert.equal(case[1] == "7" and epochs or epochs:gsub("two runs", "one run"), p:out())
    end
  end)

  it("run again by hand, the workers' iterators go on where the backup has them", function()
    local k = clusters.start(1, 2)
    local one = text("3", "35", "20"):gsub("workers = 2", "workers = 1")
    k:chief(one)
    assert.equal(137, k.boss:wait(30), k.boss:err())
    k:chief(one)
    assert.equal("240 examples were seen 1 times\n3 epochs, 60 steps, in two runs\nepoch\n1\n2\n3\n", k:ends(30))
  end)

  it("SIGTERM to the chief saves within its grace and ends it; the next one visits what is left", function()
    local k = clusters.start(2, 2)
    local preempted = text("false", "nil", "nil"):gsub("save_freq = false",
      "save_freq = false, save_before_preemption = true"):gsub("n = n %+ 1", [[%0
    if n == 20 and not io.open(DIR .. "/told") then
      io.open(DIR .. "/told", "w")
      print "go"
      io.stdout:flush()
      local backup = model.fitting.list:find(C.BackupAndRestore)
      while not backup._urgent do -- until it knows
        tm.sleep(0.005)
        require("tidemill.distribute.wait").heed()
      end
    end
]])
    k:chief(preempted)
    k:says "go"
    P.signal("TERM", k.boss.pid)
    assert.equal(143, k.boss:wait(30))
    assert.matches("BackupAndRestore: .*SIGTERM: saved", k.boss:err())
    k:chief(preempted)
    assert.equal(epochs, k:ends(60))
  end)

  it("whoever is killed and when, chief or worker, every example is seen once an epoch", function()
    local dir, random = P.dir(), 11
    local function draw()
      random = random * 16807 % 2147483647 -- Park and Miller's
      return random / 2147483647
    end
    local slow = text("5", "nil", "nil"):gsub("n = n %+ 1", "%0 tm.sleep(0.004)")
    local p = P.run({ "launch", "--workers", "2", "--ps", "2", "--restart-chief", P.script(slow) }, { DIR = dir })
    for _ = 1, 8 do
      P.sleep(0.1 + 0.4 * draw())
      local pid = draw() < 0.5 and P.task("chief", 0) or P.task("worker", draw() < 0.5 and 0 or 1)
      if pid and not p:status() then P.signal("KILL", pid) end
    end
    assert.equal(0, p:wait(60), p:err())
    assert.matches("^240 examples were seen 3 times\n3 epochs, 180 steps, in %w+ runs?\nepoch\n1\n2\n3\n$", p:out())
  end)
end)
