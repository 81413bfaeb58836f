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

describe("lua/tidemill/meta", function()
  it("describes everything in the C module", function()
    local named = dofile "spec/tools/named.lua"
    local text = named.read "lua/tidemill/meta/core.lua" .. named.read "lua/tidemill/meta/system.lua"
    for name, x in pairs(require "tidemill.core") do
      local said = type(x) == "function" and debug.getinfo(x, "S").what ~= "C" -- Lua put it there
        or text:find(("\nfunction core.%s("):format(name), 1, true)
        or text:find(("\n---@field %s "):format(name), 1, true)
      assert.is_truthy(said, name)
    end
  end)
end)
