-- docs/fit-and-evaluate.md: its blocks run, one after the other; its tables name options
-- that there are.  docs/fit.md names tests and files that there are.
local tm = require "tidemill"
local named = dofile "spec/tools/named.lua"

local text = named.read "docs/fit-and-evaluate.md"

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

describe("docs/fit.md", function()
  local inside = named.read "docs/fit.md"
  local tests = inside:match "\n## Where it is tested\n(.*)"

  it("names tests that there are", function() assert.is_true(named.check(tests) > 100) end)

  it("has a test of each limit of TensorFlow's that it names", function()
    for _, n in ipairs { 2, 3, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17 } do
      local limit, found = ("(L%d)"):format(n), false
      assert.is_truthy(tests:find(limit, 1, true), limit)
      for file in tests:gmatch "`([%w_]+)` \"" do
        local source = named.read("spec/" .. file .. "_spec.lua") or ""
        for name in source:gmatch "\n *it%(\"([^\n]-)\"," do found = found or name:find(limit, 1, true) end
      end
      assert.is_truthy(found, limit)
    end
  end)

  it("lists the files of lua/tidemill/fit", function()
    local list = assert(io.popen "ls lua/tidemill/fit")
    for file in list:lines() do assert.is_truthy(inside:find(("\n| `%s` |"):format(file), 1, true), file) end
    list:close()
  end)
end)
