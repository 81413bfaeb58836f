-- docs/fit-and-evaluate.md: its blocks run, one after the other; its tables name options
-- that there are.
local tm = require "tidemill"

local f = io.open "docs/fit-and-evaluate.md"
local text = f:read "*a"
f:close()

describe("docs/fit-and-evaluate.md", function()
  it("has blocks that run", function()
    local parts = {}
    for block in text:gmatch "```lua\n(.-)```" do parts[#parts + 1] = block end
    assert.is_true(#parts >= 5)
    local printed = 0
    local env = setmetatable({ print = function() printed = printed + 1 end }, { __index = _G })
    local source = table.concat(parts, "\n")
    assert(load(source, "=doc", "t", env))()
    assert.is_true(printed >= 4)
  end)

  it("names options that there are", function()
    local m = tm.Sequential { tm.layers.Dense { units = 1 } }
    local known = {}
    for what, rows in text:gsub("\n\n", "\n\n\n"):gmatch "\n| `(%l+)` | default | |\n|[-|]+|\n(.-)\n\n" do
      for row in (rows .. "\n"):gmatch "| ([^|]+) |[^\n]*\n" do
        for name in row:gmatch "`([%l_]+)`" do
          local _, e = pcall(m[what], m, what == "compile" and { [name] = false } or 1, { [name] = false })
          assert.is_nil(tostring(e):find("unknown option", 1, true), name)
          known[#known + 1] = what .. "." .. name
        end
      end
    end
    assert.is_true(#known >= 20, table.concat(known, " "))
  end)
end)
