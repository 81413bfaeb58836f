-- What a PreemptionWatcher looks at: signals, a sentinel file, metadata addresses (a real
-- HTTP server), Slurm, Kubernetes.
local P = dofile "spec/tools/process.lua"
local tm = require "tidemill"

local watchers, servers = {}, {}

local function watch(sources, interval)
  local w = tm.distribute.PreemptionWatcher { sources = sources, interval = interval or 0.02 }
  watchers[#watchers + 1] = w
  return w
end

--- Its message within a few seconds.
local function message(w)
  return P.eventually(5, function() return w.preemption_message end)
end

local function silent(w)
  P.sleep(0.15)
  assert.is_nil(w.preemption_message)
end

local function write(path, text)
  local f = assert(io.open(path .. ".part", "w"))
  f:write(text)
  f:close()
  assert(os.rename(path .. ".part", path))
end

local function slurp(path)
  local f = io.open(path)
  local text = f and f:read "a" or ""
  if f then f:close() end
  return text
end

--- A server whose answers are files in a directory: address, put(path, text), log().
local function serve()
  local dir = P.dir()
  local p = P.start { P.tidemill:gsub("tidemill$", "httpd"), dir }
  servers[#servers + 1] = p
  local port = assert(p:says "%d+")
  return {
    url = "http://127.0.0.1:" .. port, process = p,
    put = function(path, text) write(dir .. "/" .. path:gsub("[^%w%-]", "_"), text) end,
    log = function() return slurp(dir .. "/log") end,
  }
end

local raises = dofile("spec/tools/expect.lua").raises

local me = "/job:chief/task:0: "

describe("a PreemptionWatcher", function()
  after_each(function()
    for _, w in ipairs(watchers) do w:close() end
    for _, p in ipairs(servers) do p:kill() end
    watchers, servers = {}, {}
    assert.same({}, P.cleanup())
  end)

  it("names sources of the wrong kind", function()
    local url = "http://127.0.0.1:1/"
    for text, sources in pairs { ["url.headers"] = { url = { url = url, headers = "a: b" } },
      ['url.headers["X"]'] = { url = { url = url, headers = { X = "a\0b" } } },
      ["url.resource"] = { url = { url = url, resource = {} } }, ["kubernetes.api"] = { kubernetes = { api = true } },
      ["kubernetes.pod"] = { kubernetes = { pod = {} } }, ["kubernetes must be"] = { kubernetes = 3 },
      ["slurm must be"] = { slurm = "yes" }, ["zero byte"] = { file = "a\0b" } } do
      local ok, e = pcall(watch, sources)
      assert.is_false(ok, text)
      assert.is_true(tm.is_error(e, "invalid_argument"), tostring(e))
      assert.truthy(tostring(e):find(text, 1, true), tostring(e))
    end
  end)

  it("finds a sentinel file: its content is the message", function()
    local path = P.dir() .. "/sentinel"
    local w = watch { file = path }
    silent(w)
    write(path, "  leave by noon\27[31m\n\n")
    assert.equal(me .. path .. ": leave by noon [31m", message(w))
    os.remove(path)
    silent(watch { file = path })
    write(path, "")
    assert.equal(me .. path, message(watch { file = path }))
    write(path, ("long "):rep(10000))
    assert.is_true(#message(watch { file = path }) < 500)
    silent(watch { file = P.dir() }) -- a directory is none
    os.execute("mkfifo " .. path .. "-pipe") -- nor is a pipe, and it holds nobody up
    local pipe = watch { file = path .. "-pipe" }
    silent(pipe)
    pipe:close()
  end)

  it("polls GCE's metadata, with its header", function()
    local s = serve()
    local w = watch { url = { url = s.url .. "/computeMetadata/v1/instance/preempted",
      headers = { ["Metadata-Flavor"] = "Google" } } }
    silent(w) -- 404
    s.put("/computeMetadata/v1/instance/preempted", "200 Metadata-Flavor: Google\nFALSE\n")
    silent(w)
    s.put("/computeMetadata/v1/instance/preempted", "500\nTRUE\n")
    silent(w)
    s.put("/computeMetadata/v1/instance/preempted", "200 Metadata-Flavor: Google\nTRUE\n")
    assert.equal(me .. s.url .. "/computeMetadata/v1/instance/preempted: TRUE", message(w))
    local before = #s.log()
    P.sleep(0.1)
    assert.equal(before, #s.log()) -- it has said its message and asks no more
    s.put("/maintenance-event", "200\nNONE\n")
    w = watch { url = s.url .. "/maintenance-event" }
    silent(w)
    s.put("/maintenance-event", "200\nTERMINATE_ON_HOST_MAINTENANCE")
    assert.is_truthy(message(w):find "TERMINATE_ON_HOST_MAINTENANCE")
  end)

  it("polls AWS's spot instance-action, and gets the token that it wants", function()
    local s, path = serve(), "/latest/meta-data/spot/instance-action"
    local w = watch { url = s.url .. path }
    silent(w) -- 404: no notice
    s.put(path, '200 X-aws-ec2-metadata-token: tok3n\n{"action": "terminate", "time": "2030-09-18T08:22:00Z"}')
    silent(w) -- 401, and no token to be had
    s.put("/latest/api/token", "200 X-aws-ec2-metadata-token-ttl-seconds: 60\ntok3n")
    assert.is_truthy(message(w):find('"action": "terminate"', 1, true))
    assert.is_truthy(s.log():find("PUT /latest/api/token", 1, true))
  end)

  it("polls Azure's scheduled events, of this machine alone when it is named", function()
    local s, path = serve(), "/metadata/scheduledevents?api-version=2020-07-01"
    local function events(text) s.put(path, "200 Metadata: true\n" .. text) end
    local function event(kind, name)
      events(('{"DocumentIncarnation": 2, "Events": [{"EventId": "A", "EventType": "%s", "Resources": ["%s"], '
        .. '"NotBefore": "Mon, 19 Sep 2030 18:29:47 GMT"}]}'):format(kind, name))
    end
    local source = { url = s.url .. path, headers = { "Metadata: true" }, resource = "vm1" }
    local w = watch { url = source }
    events '{"DocumentIncarnation": 1, "Events": []}'
    silent(w)
    event("Freeze", "vm1")
    silent(w)
    event("Preempt", "vm2")
    silent(w)
    event("Preempt", "vm1")
    assert.is_truthy(message(w):find("Preempt, not before Mon, 19 Sep 2030 18:29:47 GMT", 1, true))
  end)

  it("does not take a server that is away, hangs or lies for a message, and closes at once", function()
    local s = serve()
    s.put("/hang", "0")
    local w = watch { url = { url = s.url .. "/hang", timeout = 60 } }
    P.sleep(0.1)
    local t = P.now()
    w:close()
    assert.is_true(P.within(2, t))
    s.process:kill()
    s.process:wait(5)
    silent(watch { url = s.url .. "/gone" })
    local big = serve()
    big.put("/big", "200\n" .. (" "):rep(60000))
    silent(watch { url = big.url .. "/big" })
  end)

  it("sees the signals of sbatch --signal and tells the job", function()
    local text = [[
      local tm = require "tidemill"
      local w = tm.distribute.PreemptionWatcher(...)
      print "go" io.stdout:flush()
      while not w.preemption_message do tm.sleep(0.01) end
      print(w.preemption_message)
    ]]
    local slurm = { SLURM_JOB_ID = "4711", SLURM_JOB_NAME = "ctr", SLURM_PROCID = "2", SLURMD_NODENAME = "n17",
      SLURM_RESTART_COUNT = "1" }
    for _, sig in ipairs { "USR1", "TERM" } do
      for i, options in ipairs { "...", "{ sources = { slurm = true } }" } do
        local p = P.run({ P.script((text:gsub("%.%.%.", options))) }, i == 1 and slurm or nil)
        assert.is_truthy(p:says "go")
        p:kill(sig)
        assert.equal(0, p:wait(3), p:err())
        assert.equal(("go\n/job:chief/task:0: SIG%s from Slurm%s\n"):format(sig,
          i == 1 and " (job 4711, named ctr, task 2, node n17, restarts 1)" or ""), p:out())
      end
    end
  end)

  it("asks the API of Kubernetes whether its own pod is being deleted, and why", function()
    local s, dir = serve(), P.dir()
    write(dir .. "/token", "s3cret\n")
    write(dir .. "/namespace", "research")
    local function pod(text)
      s.put("/api/v1/namespaces/research/pods/trainer-0", "200 Authorization: Bearer s3cret\n" .. text)
    end
    local source = { api = s.url, directory = dir, pod = "trainer-0" }
    pod [[{"metadata": {"name": "trainer-0"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]]
    local w = watch { kubernetes = source }
    silent(w)
    pod [[{"metadata": {"name": "trainer-0", "deletionTimestamp": "2030-01-02T03:04:05Z"},
      "status": {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting"}]}}]]
    assert.equal(me .. "Kubernetes: pod trainer-0 is being deleted, by 2030-01-02T03:04:05Z, EvictionByEvictionAPI: "
      .. "Eviction API: evicting", message(w))
    write(dir .. "/token", "expired")
    silent(watch { kubernetes = source })
  end)

  it("tells with Kubernetes's SIGTERM why the pod ends", function()
    local s, dir = serve(), P.dir()
    write(dir .. "/token", "t")
    write(dir .. "/namespace", "n")
    local p = P.run { P.script(([[
      local tm = require "tidemill"
      local w = tm.distribute.PreemptionWatcher{ interval = 60, sources = { kubernetes = {
        api = %q, directory = %q, pod = "p" } } }
      print "go" io.stdout:flush()
      while not w.preemption_message do tm.sleep(0.01) end
      print(w.preemption_message)
    ]]):format(s.url, dir)) }
    assert.is_truthy(p:says "go")
    P.sleep(0.2)
    s.put("/api/v1/namespaces/n/pods/p", [[200
      {"metadata": {"deletionTimestamp": "T"}, "status": {"conditions": [
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "no room"}]}}]])
    p:kill "TERM"
    assert.equal(0, p:wait(3), p:err())
    assert.equal("go\n/job:chief/task:0: SIGTERM; pod p is being deleted, by T, PreemptionByScheduler: no room\n",
      p:out())
  end)

  it("takes what the environment offers", function()
    local dir = P.dir()
    local p = P.run({ P.script [[
      local tm = require "tidemill"
      local w = tm.distribute.PreemptionWatcher()
      while not w.preemption_message do tm.sleep(0.01) end
      print(w.preemption_message)
    ]] }, { TM_PREEMPTION_FILE = dir .. "/it",
      TF_CONFIG = '{"cluster": {"evaluator": ["h:1"]}, "task": {"type": "evaluator", "index": 0}}' })
    write(dir .. "/it", "now")
    assert.equal(0, p:wait(5))
    assert.equal(("/job:evaluator/task:0: %s/it: now\n"):format(dir), p:out())
  end)

  it("lives beside others; a closed one sees nothing, and the last gives the signal back", function()
    local p = P.run { P.script [[
      local tm = require "tidemill"
      local W = tm.distribute.PreemptionWatcher
      local function say(...) print(...) io.stdout:flush() end
      local function hit() os.execute("kill -USR1 $PPID") tm.sleep(0.3) end
      local a, b = W{ sources = { signals = { "SIGUSR1" } } }, W{ sources = { signals = { "SIGUSR1" } } }
      hit()
      say(a.preemption_message, b.preemption_message)
      a:close()
      a:close()
      local c = W{ sources = { signals = { "SIGUSR1" } } }
      say(tostring(a), c.preemption_message)
      say(select(2, pcall(a.on_message, a, print)).code)
      local n = 0
      c:on_message(function() n = n + 1 end)
      hit() hit()
      pcall(tm.sleep, 0)
      say(b.preemption_message, c.preemption_message)
      say(c:block_until_worker_exit(), n)
      b:close()
      c:close()
      say(tostring(b))
      hit()
      say "not reached: SIGUSR1 ends a process"
    ]] }
    assert.equal(128 + 10, p:wait(5), p:err())
    local m = me .. "SIGUSR1"
    assert.equal(table.concat({ m .. "\t" .. m, ("PreemptionWatcher(%q)"):format(m) .. "\tnil", "failed_precondition",
      m .. "\t" .. m, "true\t2", ("PreemptionWatcher(%q)"):format(m), "" }, "\n"), p:out())
  end)

  it("says what is wrong with its options", function()
    raises("invalid_argument", "SIGKILL", watch, { signals = { "SIGKILL" } })
    raises("invalid_argument", "signals is a list", watch, { signals = "SIGTERM" })
    raises("invalid_argument", "http://", watch, { url = "ftp://example.org" })
    raises("invalid_argument", "address is missing", watch, { url = {} })
    raises("invalid_argument", "Name: value", watch, { url = { url = "http://x/", headers = { "no colon" } } })
    raises("invalid_argument", "in one line", watch, { url = { url = "http://x/", headers = { a = "b\r\nEvil: c" } } })
    raises("invalid_argument", "interval", watch, {}, 0)
    raises("invalid_argument", '"signal"', watch, { signal = { "SIGTERM" } })
    raises("failed_precondition", "no Kubernetes pod", watch, { kubernetes = true })
    raises("invalid_argument", "function", function() watch({}):on_message(5) end)
    for option, value in pairs { ["--preemption-url"] = "ftp://x", ["--preemption-interval"] = "0",
      ["--grace"] = "soon", ["--preemption-header"] = "x" } do
      local p = P.run { "worker", option, value }
      assert.equal(2, p:wait(5))
      assert.is_truthy(p:err():find(option, 1, true), p:err())
    end
  end)
end)
