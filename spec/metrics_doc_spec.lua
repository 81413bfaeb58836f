-- docs/metrics.md: its block runs; it names every metric.
local tm = require "tidemill"

describe("docs/metrics.md", function()
  local f = io.open "docs/metrics.md"
  local text = f:read "*a"
  f:close()

  it("has a block that runs", function()
    local printed = {}
    local env = setmetatable({ print = function(...) printed[#printed + 1] = { ... } end }, { __index = _G })
    local chunk = assert(load(text:match "```lua\n(.-)```", "=doc", "t", env))
    chunk()
    assert.equal(2, #printed)
    assert.equal("mse", printed[2][2])
  end)

  it("names every metric", function()
    for name, class in pairs(tm.metrics) do
      if type(class) == "table" then assert.is_truthy(text:find(name, 1, true), name) end
    end
  end)
end)
