-- docs/failures.md names tests and constants: they are there.
local function read(path)
  local f = io.open(path)
  if not f then return nil end
  local s = f:read "a"
  f:close()
  return s
end

describe("docs/failures.md", function()
  local text = read "docs/failures.md"

  it("names tests that there are", function()
    local n = 0
    for file, name in text:gmatch '`([%w_]+)` "([^"]+)"' do
      local source = read("spec/" .. file .. "_spec.lua") or read("spec/core/" .. file .. ".c")
      assert.is_truthy(source, file)
      assert.is_truthy(source:find(name, 1, true), file .. ": " .. name)
      n = n + 1
    end
    assert.is_true(n > 100, n)
  end)

  it("tells of each pain point from 1 to 43", function()
    local last = 0
    for number in text:gmatch "\n| (%d+) |" do
      assert.equal(last + 1, tonumber(number))
      last = last + 1
    end
    assert.equal(43, last)
  end)

  it("names constants that there are", function()
    local p = io.popen "cat core/*/*.c core/*/*.h"
    local source = p:read "a"
    p:close()
    for name in text:gmatch "`(%u[%u_]+%*?)`" do
      if name ~= "UPDATE" and name ~= "TM_CONFIG" then
        assert.is_truthy(source:find(name:gsub("%*", ""), 1, true), name)
      end
    end
  end)
end)
