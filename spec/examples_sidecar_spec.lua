-- examples/sidecar.lua: what its head comment says.
local events = dofile "spec/tools/events.lua"
local P = dofile "spec/tools/process.lua"

describe("examples/sidecar.lua", function()
  after_each(function() assert.same({}, P.cleanup()) end)

  local function check(text, dir)
    local seen, n = {}, 0
    for k, accuracy in text:gmatch "checkpoint (%d+) after %d+ steps: accuracy ([%d.]+)" do
      assert.is_nil(seen[k], text)
      seen[k], n = tonumber(accuracy), n + 1
    end
    assert.equal(6, n, text)
    assert.is_true(seen["6"] > 0.84, text)
    assert.equal(6, #events.tag(events.of(dir .. "/validation"), "evaluation_accuracy_vs_iterations"))
  end

  it("trains on a cluster while two evaluators share its checkpoints", function()
    local dir = P.dir() .. "/run"
    local p = P.run { "launch", "--workers", "2", "--ps", "1", "--evaluators", "2", "examples/sidecar.lua", dir }
    assert.equal(0, p:wait(60), p:err())
    check(p:out(), dir)
  end)

  it("trains in one process, and is evaluated by another one beside it", function()
    local dir = P.dir() .. "/run"
    local evaluator = P.run { "evaluator", "examples/sidecar.lua", dir }
    local p = P.run { "examples/sidecar.lua", dir }
    assert.equal(0, p:wait(60), p:err())
    assert.equal(0, evaluator:wait(60), evaluator:err())
    check(evaluator:out(), dir)
  end)
end)
