-- docs/callbacks.md: its blocks run, one after the other; the options it names are there.
local tm = require "tidemill"

local f = io.open "docs/callbacks.md"
local text = f:read "*a"
f:close()

describe("docs/callbacks.md", function()
  it("has blocks that run", function()
    local dir = os.tmpname()
    os.remove(dir)
    assert(os.execute("mkdir " .. dir))
    local parts, printed = {}, {}
    for block in text:gmatch "```lua\n(.-)```" do parts[#parts + 1] = block end
    local source = table.concat(parts, "\n"):gsub("runs/doc", dir):gsub('"log.csv"', ("%q"):format(dir .. "/log.csv"))
    local env = setmetatable({ print = function(...) printed[#printed + 1] = { ... } end }, { __index = _G })
    local ok, err = pcall(assert(load(source, "=doc", "t", env)))
    local csv = io.open(dir .. "/log.csv")
    local backup = io.open(dir .. "/backup")
    os.execute("rm -rf " .. dir)
    assert(ok, tostring(err))
    assert(csv):close()
    assert.is_nil(backup)
    assert.equal(2, printed[#printed - 1][1])
    assert.equal(96, printed[#printed][1])
  end)

  it("names every callback, and options that there are", function()
    local names = 0
    for name, options in text:gmatch "%*%*(%u%a+)%*%*`[^`]-{([^`]-)}%)?`" do
      for item in options:gmatch "[^,]+" do
        local option = item:match "^%s*([%l_]+)"
        if option and name ~= "LambdaCallback" then
          local given = { [option] = {} }
          local ok, err = pcall(tm.callbacks[name], "x", given)
          if name:find "^EarlyStopping" or name:find "^Reduce" then ok, err = pcall(tm.callbacks[name], given) end
          assert(ok or not tostring(err):find("unknown option", 1, true), name .. "." .. option)
        end
      end
      names = names + 1
    end
    assert(names >= 6, names)
    for _, name in ipairs(tm.callbacks.names()) do
      assert(text:find(name, 1, true), name)
    end
  end)
end)
