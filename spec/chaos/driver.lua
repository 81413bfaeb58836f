-- Trains on Adult with a real cluster (`tidemill launch`, 4 workers, 2 ps) while it kills,
-- stops, delays and cuts tasks, as a seed says; then checks the account.
--
-- usage: tidemill spec/chaos/driver.lua [SEED [STEPS [POLICY [FAULTS]]]]
--   POLICY  "none" (ps are not killed), "replicas", "restore" or "restore_shards"
--
-- Every closure must be done, the counter variable must equal what was done (less what a
-- rollback took back), the loss must be near that of an undisturbed run, and nothing may
-- be left: no process, file, shared memory, descriptor.

local tm = require "tidemill"
local P = dofile "spec/tools/process.lua"
local wires = dofile "spec/tools/wires.lua"

local SEED, STEPS = tonumber(arg[1] or 1), tonumber(arg[2] or 2000)
local POLICY, FAULTS = arg[3] or "replicas", tonumber(arg[4] or 200)
local WORKERS, PS, HEARTBEAT = 4, 2, 1

-- A generator of its own (SplitMix64), so that a seed means the same everywhere.
local state = SEED
local function random()
  state = state + 0x9E3779B97F4A7C15
  local z = state
  z = (z ~ (z >> 30)) * 0xBF58476D1CE4E5B9
  z = (z ~ (z >> 27)) * 0x94D049BB133111EB
  return ((z ~ (z >> 31)) >> 11) / 2 ^ 53
end
local function between(a, b) return a + (b - a) * random() end

local function read(path)
  local f = io.open(path)
  if not f then return "" end
  local s = f:read "a"
  f:close()
  return s
end

local function lines_of(command)
  local p = assert(io.popen(command))
  local s = p:read "a"
  p:close()
  return s
end

-- --- a run ---

--- Free ports, all different.
local function free_ports(n)
  local list, seen = {}, {}
  while #list < n do
    local port = tm.distribute.pick_unused_port()
    if not seen[port] then list[#list + 1] = port end
    seen[port] = true
  end
  return list
end

local function start(dir, policy, steps, ports, wired)
  local words = { "launch", "--workers", tostring(WORKERS), "--ps", tostring(PS), "--max-restarts", "100" }
  if wired then
    local dial = {}
    for i, w in ipairs(wired) do dial[i] = w.port end
    for _, w in ipairs { "--ports", table.concat(ports, ","), "--dial", table.concat(dial, ",") } do
      words[#words + 1] = w
    end
  end
  for _, w in ipairs { "spec/chaos/train.lua", dir, policy, tostring(steps), tostring(HEARTBEAT) } do
    words[#words + 1] = w
  end
  return P.run(words)
end

local function report_of(run)
  local line = run:out():match "(scheduled %d.-)\n"
  if not line then return nil end
  local report = {}
  for name, value in line:gmatch "(%w+) ([%d.-]+)" do report[name] = tonumber(value) end
  return report
end

local function touch(path) assert(io.open(path, "w")):close() end

-- --- faults ---

local later = {} -- what is to be undone: { time, fn }

local function after(seconds, fn) later[#later + 1] = { P.now() + seconds, fn } end

local function undo(all)
  for i = #later, 1, -1 do
    if all or later[i][1] <= P.now() then table.remove(later, i)[2]() end
  end
end

local function stop(job, index, seconds)
  local pid = P.task(job, index)
  if not pid then return false end
  P.signal("STOP", pid)
  after(seconds, function() P.signal("CONT", pid) end)
  return true
end

local function kill(job, index)
  local pid = P.task(job, index)
  if pid then P.signal("KILL", pid) end
  return pid ~= nil
end

local function some_worker() return math.floor(random() * WORKERS) end
local function some_ps() return math.floor(random() * PS) end

local wired -- in front of the ps, then of the workers

--- Give an order to the wire in front of some task, and another one later.
local function disturb_wire(order, seconds, back)
  local w = wired[1 + math.floor(random() * #wired)]
  w.order(order)
  if back then after(seconds, function() w.order(back) end) end
  return true
end

local faults = {
  { 8, "kill worker", function() return kill("worker", some_worker()) end },
  { 5, "stop worker", function() return stop("worker", some_worker(), between(0.05, 0.6)) end },
  { 1, "stop worker beyond the heartbeat", function() return stop("worker", some_worker(), 1.6 * HEARTBEAT) end },
  { 2, "stop ps", function() return stop("ps", some_ps(), between(0.05, 0.5)) end },
  { 4, "cut", function() return disturb_wire "cut" end },
  { 2, "cut in a message", function()
    return disturb_wire(("cutafter %s %d"):format(random() < 0.5 and "up" or "down", math.floor(between(1, 3000))))
  end },
  { 2, "delay", function()
    return disturb_wire(("delay %d"):format(math.floor(between(2, 40))), between(0.1, 0.5), "delay 0")
  end },
  { 2, "lose", function() return disturb_wire("drop on", between(0.05, 0.5), "drop off") end },
}
--- How often the chief has said that a ps is lost.
local function losses(run)
  local _, n = run:err():gsub("/job:ps/task:%d is lost", "")
  return n
end

local noticed -- losses that the chief must have told before another ps is killed

--- A ps may be killed while the other one has all: nothing is under way since the last.
local function kill_ps(dir, run)
  if noticed then
    if losses(run) < noticed then return false end
    noticed = nil
    os.remove(dir .. "/state") -- it may be of before; wait until the chief says anew that all is well
  end
  local text = read(dir .. "/state")
  if #later > 0 or text:match "ps%d [dc]" or not text:match "ps0 ready ps1 ready" then return false end
  noticed = losses(run) + 1
  return kill("ps", some_ps())
end

local function fault_of(n)
  local total = 0
  for _, f in ipairs(faults) do total = total + f[1] end
  n = n * total
  for _, f in ipairs(faults) do
    n = n - f[1]
    if n < 0 then return f end
  end
  return faults[#faults]
end

local function disturb(run, dir)
  local count, made = {}, 0
  local stuck = P.now() + FAULTS + 60
  while made < FAULTS and not run:status() and P.now() < stuck do
    P.sleep(between(0.02, 0.3))
    undo()
    local f = fault_of(random())
    if f[3](dir, run) then
      made, count[f[2]] = made + 1, (count[f[2]] or 0) + 1
    end
  end
  undo(true)
  return made, count
end

-- --- the account ---

local wrong = 0
local function check(ok, text, ...)
  print((ok and "ok      " or "NOT OK  ") .. text:format(...))
  if not ok then wrong = wrong + 1 end
end

local function check_run(run, dir, calm)
  local r = report_of(run)
  if not r then
    check(false, "the chief gave no account; its status is %s:\n%s", tostring(run:status()), run:out() .. run:err())
    return
  end
  print(("        closures %d, retries %d, rollbacks %d (%d closures), saves %d"):format(r.done, r.retries, r.rollbacks,
    r.lost, r.saves))
  check(run:status() == 0, "launch ended with status %s", tostring(run:status()))
  check(r.failed == 0 and r.done == r.scheduled, "%d closures scheduled, %d done, %d failed", r.scheduled, r.done,
    r.failed)
  if POLICY ~= "restore_shards" then
    check(r.counter == r.done - r.lost, "the counter is %d: %d done less %d rolled back", r.counter, r.done, r.lost)
    check(r.twin == r.counter, "the counter on the other ps is %d", r.twin)
  end
  check(math.abs(r.loss - calm.loss) < 0.02, "loss %.4f, undisturbed %.4f", r.loss, calm.loss)
  check(r.descriptors <= 2, "%d descriptors left open (libuv keeps a pipe for signals)", r.descriptors)
  check(lines_of(("find %s -name '*.tmp-*'"):format(dir)) == "", "no half-written file is left")
end

local shm = lines_of "ls /dev/shm 2>/dev/null"

local function whole()
  local dir = P.dir()
  local began = P.now()
  local ports = free_ports(PS + WORKERS)
  wired = {}
  for i, port in ipairs(ports) do wired[i] = wires.new(P, port) end
  local run = start(dir, POLICY, STEPS, ports, wired)
  if POLICY ~= "none" then faults[#faults + 1] = { 6, "kill ps", kill_ps } end
  if not P.eventually(20, function() return read(dir .. "/state") ~= "" or run:status() end) then
    check(false, "the cluster did not begin: %s", run:err())
  end
  local made, count = disturb(run, dir)
  local calmed = P.now()
  touch(dir .. "/stop")
  check(run:wait(120), "the run ends")
  local r = report_of(run)
  local quiet = P.dir()
  touch(quiet .. "/stop")
  local calm = start(quiet, "none", r and r.done or STEPS)
  check(calm:wait(300) == 0, "the undisturbed run ends: %s", calm:status() == 0 and "status 0" or calm:err())
  print(("seed %d, policy %s: %d faults in %.1f s"):format(SEED, POLICY, made, calmed - began))
  for name, n in pairs(count) do print(("        %3d  %s"):format(n, name)) end
  check(made == FAULTS, "%d of %d faults were made", made, FAULTS)
  if run:status() and calm:status() == 0 then check_run(run, dir, report_of(calm)) end
  if os.getenv "CHAOS_LOG" or wrong > 0 then print(run:out() .. run:err()) end
end

local fine, what = xpcall(whole, debug.traceback)
check(fine, "the driver goes to its end%s", fine and "" or ": " .. tostring(what))
for _, w in ipairs(wired or {}) do w.process:kill "TERM" end
local left = P.cleanup()
check(#left == 0, "no process is left: %s", table.concat(left, "; "))
check(lines_of "ls /dev/shm 2>/dev/null" == shm, "no shared memory is left")
print(("%d passed, %d failed"):format(wrong == 0 and 1 or 0, wrong == 0 and 0 or 1))
os.exit(wrong == 0)
