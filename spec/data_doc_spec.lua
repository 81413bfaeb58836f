-- docs/data.md: its blocks run, one after the other; its tables name what there is.
local tm = require "tidemill"
local named = dofile "spec/tools/named.lua"

local text = named.read "docs/data.md"

describe("docs/data.md", function()
  it("has blocks that run and give what their comments say", function()
    local parts, shown = {}, {}
    for block in text:gmatch "```lua\n(.-)```" do parts[#parts + 1] = block end
    assert.equal(3, #parts)
    local env = setmetatable({ print = function(...)
      local line = {}
      for i = 1, select("#", ...) do line[i] = tostring((select(i, ...))) end
      shown[#shown + 1] = table.concat(line, " ")
    end }, { __index = _G })
    assert(load(table.concat(parts, "\n"), "=doc", "t", env))()
    local all = table.concat(shown, "\n")
    assert.is_truthy(all:find("{ { age = int64 (), fare = float32 (), name = string () }, int64 () }", 1, true), all)
    assert.is_truthy(all:find("float32 () float64 () int64 ()", 1, true), all)
    assert.is_truthy(all:match "Cyd 22%.?0? 10", all)
    assert.is_truthy(all:match "Bob %-?nan 8")
  end)

  it("names every source, transform and option of csv", function()
    for name, fn in pairs(tm.data) do
      local inside = { describe = 1, trace_iterator = 1, spec_key = 1, resumes = 1, is_dataset = 1 }
      if type(fn) == "function" and not inside[name] then
        assert.is_truthy(text:find("tm.data." .. name, 1, true), name)
      end
    end
    for name in pairs(tm.data._methods) do assert.is_truthy(text:find(":" .. name .. "[({]"), name) end
    local known = require("tidemill.lib.options").asked(tm.data.csv, {})
    local csv = text:match "\n## csv\n(.-)\n## "
    for _, name in ipairs(known) do
      if name ~= "compression" then assert.is_truthy(csv:find("`" .. name .. "`", 1, true), name) end
    end
    local ds = tm.data.range(3)
    for name in text:match "\n## Transforms\n(.-)\n## ":gmatch "ds:(%l[%l_]+)" do assert.is_function(ds[name], name) end
  end)
end)

describe("columns of tm.data.csv by name", function()
  local path

  setup(function()
    path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write("a,b,total x\n1,2,3\n4,,6\n")
    f:close()
  end)

  teardown(function() os.remove(path) end)

  local function types(o)
    o.files = path
    local out = {}
    for k, s in pairs(tm.data.csv(o).element_spec) do out[k] = s.dtype end
    return out
  end

  local function refused(text_, o)
    o.files = path
    local ok, e = pcall(tm.data.csv, o)
    assert.is_false(ok)
    assert.equal("invalid_argument", e.code)
    assert.is_truthy(e.message:find(text_, 1, true), e.message)
  end

  it("set the dtypes of these; the others are inferred, and all are kept", function()
    assert.same({ a = "int64", b = "int64", ["total x"] = "float32" }, types { columns = { ["total x"] = "float32" } })
    assert.same({ a = "string", b = "float64", ["total x"] = "int64" },
      types { columns = { a = "string", b = { dtype = "float64", default = 7 } }, header = true })
    local it = tm.data.csv { files = path, columns = { b = { "int32", 9 } }, label = "a" }:iterator()
    it:next()
    local e = it:next()
    assert.equal(9, e[1].b:item())
    assert.equal("int32", e[1].b.dtype)
    assert.equal(4, e[2]:item())
  end)

  it("are names of the header, or raise with the nearest", function()
    refused('csv: unknown column "total_x"; did you mean "total x"?', { columns = { total_x = "float32" } })
    refused('csv: unknown column "totl x"; did you mean "total x"?', { columns = { "totl x" }, header = true })
    refused('csv: unknown label "totalx"; did you mean "total x"?', { label = "totalx" })
    refused("header = false takes a list", { columns = { a = "float32" }, header = false })
    refused("not both", { columns = { "a", b = "float32" } })
    refused("columns is a list of names, or a table of dtypes by name, got a string", { columns = "a" })
    refused('"complex" is no dtype: there are float32', { columns = { a = "complex" } })
    refused('the dtype of column "a" is a name as "float32", got a number', { columns = { a = 3 } })
  end)
end)
