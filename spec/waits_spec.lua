-- Every wait of the chief's ends: when a ps is lost, when it is silent, at Ctrl-C.
local clusters = dofile "spec/tools/cluster.lua"
local P = clusters.P

local head = [[
local tm = require "tidemill"
local D = tm.distribute
local DIR = os.getenv "DIR"
local function say(...) print(...) io.stdout:flush() end
local function await(name)
  while not io.open(DIR .. "/" .. name) do tm.sleep(0.005) end
end
local strategy = D.ParameterServerStrategy(D.resolver{ workers = 1, ps = 1 }, { OPTIONS })
local v = strategy:scope(function() return tm.Variable(tm.ones({ 1000 }), { name = "v" }) end)
local c = D.ClusterCoordinator(strategy, { queue_size = 50 })
local checkpoint = tm.train.Checkpoint{ v = v }
local manager = tm.train.CheckpointManager(checkpoint, DIR .. "/ckpt")
c.checkpoint_manager = manager
local path = assert(manager:save())
local use = tm.func(function() tm.sleep(0.01) v:assign_add(v * 0) return v:read()[1] end)
local function must(x, err) return x ~= nil and x or error(err, 0) end
local function fill() for _ = 1, 40 do c:schedule(use) end end
]]

-- What waits, once "go" was said and the ps is stopped or killed.
local calls = {
  ["schedule on a full queue"] = "for _ = 1, 100 do c:schedule(use) end",
  ["join"] = "fill() c:join()",
  ["join with a timeout"] = "fill() c:join{ timeout = 50 }",
  ["done"] = "fill() while not c:done() do tm.sleep(0.01) end",
  ["fetch"] = "fill() c:schedule(use):fetch()",
  ["fetch with a timeout"] = "fill() c:schedule(use):fetch{ timeout = 50 }",
  ["read"] = "v:read()",
  ["assign"] = "v:assign(tm.zeros({ 1000 }))",
  ["assign of rows"] = "v:scatter_update({ 1, 2 }, { 0, 0 })",
  ["a function run here"] = "tm.func(function() return v * 2 end)()",
  ["making a variable"] = "strategy:scope(function() return tm.Variable(tm.ones({ 10 })) end)",
  ["save"] = "must(manager:save())",
  ["save while functions run"] = "fill() tm.sleep(0.05) must(manager:save())",
  ["restore"] = "must(checkpoint:restore(path))",
}
local function script(options, name)
  return head:gsub("OPTIONS", function() return options end)
    .. [[
    say "go"
    await "gone"
    local t = tm.time()
    local ok, e = pcall(function() ]] .. calls[name] .. [[ end)
    say("ends", ok, e and e.code, e and e.task, tm.time() - t, e and e.message)
  ]]
end

--- Run each call in a cluster of its own, all at once; after(k), then later(k) do what
--- is to happen.
local function all(options, after, check, later)
  local running = {}
  for name in pairs(calls) do
    local k = clusters.start(1, 1)
    k:chief(script(options, name))
    running[name] = k
  end
  for _, k in pairs(running) do k:says("go", 20) end
  for _, k in pairs(running) do after(k) end
  if later then P.sleep(1) end
  for _, k in pairs(later and running or {}) do later(k) end
  for name, k in pairs(running) do check(name, k) end
end

local function ended(k, name, code, low, high)
  local out = k:ends(10)
  local got, task, took = out:match "ends\tfalse\t(%S+)\t(%S+)\t(%S+)"
  local fetched = name:find "^fetch" and got == "cancelled" -- what was queued behind the one that failed
  assert.is_truthy(got == code or fetched, name .. ": " .. out)
  if not fetched then assert.equal("/job:ps/task:0", task, name .. ": " .. out) end
  took = tonumber(took)
  assert.is_truthy(took >= low and took <= high, name .. ": " .. out)
end

describe("every wait of the chief", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  it("says unavailable, naming the ps, at once when a ps is killed", function()
    all("heartbeat_interval = 0.2, heartbeat_timeout = 5", function(k)
      k:kill("ps", 0)
      k:tell "gone"
    end, function(name, k) ended(k, name, "unavailable", 0, 1.5) end)
  end)

  it("says so after heartbeat_timeout when a ps is silent", function()
    all("heartbeat_interval = 0.2, heartbeat_timeout = 1", function(k)
      k:signal("STOP", "ps", 0)
      k:tell "gone"
    end, function(name, k) ended(k, name, "unavailable", 0.3, 3.5) end)
  end)

  it("bears a ps that is silent for less than that", function()
    all("heartbeat_interval = 0.2, heartbeat_timeout = 10", function(k)
      k:signal("STOP", "ps", 0)
      k:tell "gone"
    end, function(name, k)
      assert.is_truthy(k:ends(10):find "ends\ttrue", name .. ": " .. k.boss:out())
    end, function(k) k:signal("CONT", "ps", 0) end)
  end)

  local function interrupted(options, after)
    all(options, after, function(name, k)
      P.sleep(0.05)
      k.boss:kill "INT"
      local t = P.now()
      assert.is_truthy(k.boss:wait(5), name)
      assert.is_true(P.within(3, t), ("%s: %.1f s"):format(name, P.now() - t))
      local out, err = k.boss:out(), k.boss:err()
      assert.is_truthy(err:find "cancelled" or out:find "\tcancelled", name .. out .. err)
    end)
  end

  it("ends at Ctrl-C while a ps is silent", function()
    interrupted("heartbeat_interval = 0.2, heartbeat_timeout = 60", function(k)
      k:signal("STOP", "ps", 0)
      k:tell "gone"
    end)
  end)

  it("ends at Ctrl-C while a lost ps is waited for", function()
    interrupted("heartbeat_interval = 0.2, heartbeat_timeout = 5, on_ps_failure = 'restore'", function(k)
      k:kill("ps", 0)
      k:tell "gone"
    end)
  end)
end)
