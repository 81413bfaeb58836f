-- Examples that people copy: each is run as it is, on the data that are shipped.

local process = require "spec.tools.process"

after_each(process.cleanup)

describe("examples/movietweetings.lua", function()
  it("foretells ratings better than biases alone do", function()
    local lines = process.example("movietweetings", "1")
    local rmse, plain = lines[#lines]:match "^test RMSE (%d%.%d+) against (%d%.%d+)"
    assert.equal("1.5394", plain)
    assert.is_true(tonumber(rmse) < tonumber(plain) - 0.005, lines[#lines])
  end)
end)

describe("examples/custom_loop.lua", function()
  it("tells penguins apart", function()
    local lines = process.example("custom_loop")
    local accuracy = lines[#lines]:match "^accuracy (%d%.%d+) on 69 penguins"
    assert.is_true(tonumber(accuracy) >= 0.97, lines[#lines])
  end)

  it("goes on from its checkpoints", function()
    local dir = process.dir()
    process.example("custom_loop", dir)
    local lines = process.example("custom_loop", dir)
    assert.equal("going on after epoch 40", lines[1])
    assert.equal(2, #lines)
  end)
end)

describe("examples/evaluation.lua", function()
  it("counts the same rows right in four ways", function()
    local lines = process.example("evaluation")
    assert.equal(4, #lines)
    local right = {}
    for i, line in ipairs(lines) do
      assert.equal(tostring(i), line:sub(1, 1))
      right[i] = tonumber(line:match "(%d+) of 16281 rows are right$")
      assert.equal(right[1], right[i])
    end
    assert.is_true(right[1] / 16281 > 0.85)
  end)
end)
