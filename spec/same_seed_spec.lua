--- The same seed gives the same numbers, bit for bit, wherever and however it runs.

local program = (os.getenv "TM_BUILD" or "build") .. "/tidemill"
local script = "spec/scripts/same_seed.lua"

local function run(how, seed, shards)
  local command = ("%s %s %s %d %d 2>/dev/null"):format(program, how, script, seed, shards)
  local pipe = assert(io.popen(command))
  local text = pipe:read "a"
  assert.is_true(pipe:close())
  local _, lines = text:gsub("\n", "")
  assert.equal(35, lines)
  return text
end

describe("the same seed", function()
  local processes = "launch --workers 1 --ps 2"
  local want = run("", 7, 1)

  it("gives the same on every run", function() assert.equal(want, run("", 7, 1)) end)
  it("gives the same with four shards", function() assert.equal(want, run("", 7, 4)) end)
  it("gives the same by processes", function() assert.equal(want, run(processes, 7, 1)) end)
  it("gives the same by processes with four shards", function() assert.equal(want, run(processes, 7, 4)) end)
  it("is told from another seed", function() assert.not_equal(want, run("", 8, 1)) end)
end)
