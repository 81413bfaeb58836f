-- docs/saving.md: its blocks run, one after the other; its table names options that there are.
local tm = require "tidemill"

local f = io.open "docs/saving.md"
local text = f:read "*a"
f:close()

describe("docs/saving.md", function()
  it("has blocks that run", function()
    local parts = {}
    for block in text:gmatch "```lua\n(.-)```" do parts[#parts + 1] = block end
    local printed = {}
    local function note(...) printed[#printed + 1] = { ... } end
    local env = setmetatable({ print = note }, { __index = _G })
    assert(load(table.concat(parts, "\n"), "=doc", "t", env))()
    assert.same({ 24, 0.01 }, printed[1])
    assert.equal(3, #printed)
  end)

  it("names options that there are", function()
    local n = 0
    for name in text:match "\n(| option | default | |\n.-)\n\n":gmatch "\n| `([%l_]+)` |" do
      local _, e = pcall(tm.distribute.SidecarEvaluator, { [name] = false })
      assert.is_nil(tostring(e):find("unknown option", 1, true), name)
      n = n + 1
    end
    assert.equal(11, n)
  end)
end)
