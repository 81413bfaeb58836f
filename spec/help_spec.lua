local tm = require "tidemill"

describe("tm.help", function()
  it("gives usage and meaning by name and by function", function()
    local text = tm.help "matmul"
    assert.matches("^tm%.matmul%(a, b", text)
    assert.matches("transpose_a", text)
    assert.equal(text, tm.help(tm.matmul))
    assert.matches("^tm%.nn%.relu%(", tm.help "tm.nn.relu")
  end)

  it("suggests the nearest name", function()
    local ok, e = pcall(tm.help, "matmull")
    assert.is_false(ok)
    assert.equal("not_found", e.code)
    assert.matches('"matmul"', e.message)
  end)
end)
