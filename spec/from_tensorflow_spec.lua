-- docs/from-tensorflow.md: what its tables write on the right side is there: functions,
-- classes, options, files.
local tm = require "tidemill"
local named = dofile "spec/tools/named.lua"

local text = named.read "docs/from-tensorflow.md"

--- What `tm.a.b` is, nil where there is none.
local function thing(path)
  local x = tm
  for name in path:gmatch "[%w_]+" do
    local ok, found = pcall(function() return x[name] end)
    if not ok or found == nil then return nil end
    x = found
  end
  return x
end

--- Keys of a table constructor at its own level, as text.
local function keys(constructor)
  local list, inner = {}, constructor:sub(2, -2):gsub("%b{}", "{}"):gsub("%b()", "()"):gsub('%b""', '""')
  for key in inner:gmatch "([%a_][%w_]*) =" do list[#list + 1] = key end
  return list
end

--- Does fn(..., { [key] = ... }) complain of an unknown option?
local function complains(fn, key, ...)
  local given = { ... }
  given[#given + 1] = { [key] = false }
  local _, e = pcall(fn, (table.unpack or unpack)(given))
  return tostring(e):find(('unknown option "%s"'):format(key), 1, true) ~= nil
end

--- Arguments before the table, where others than numbers are looked at first.
local before = {
  ["train.CheckpointManager"] = { tm.train.Checkpoint {}, "directory" },
  ["distribute.ParameterServerStrategy"] = { tm.distribute.local_cluster { workers = 1, ps = 1 } },
}

describe("docs/from-tensorflow.md", function()
  local spans = {}
  for row in text:gmatch "\n(|[^\n]+)" do
    local right = row:match "^|.-|(.*)|$" or ""
    for span in right:gmatch "`([^`]+)`" do spans[#spans + 1] = span end
  end

  it("names things that there are", function()
    local n = 0
    for _, span in ipairs(spans) do
      for path in span:gmatch "%f[%w]tm%.([%a_][%w_.]*)" do
        n = n + 1
        assert.is_not_nil(thing(path), "tm." .. path)
      end
    end
    assert.is_true(n > 50, n)
  end)

  it("names options that there are", function()
    local model = tm.Sequential { tm.layers.Dense { units = 1 } }
    local seen = {}

    local function check(where, fn, constructor, ...)
      for _, key in ipairs(keys(constructor)) do
        if complains(fn, "no_such_option", ...) then seen[#seen + 1] = where .. "." .. key end
        assert.is_false(complains(fn, key, ...), where .. ": " .. key)
      end
    end

    --- The arguments that stand before a table: numbers will do.
    local function leading(commas)
      local list = {}
      for _ in commas:gmatch "[^,]+," do list[#list + 1] = 1 end
      return list
    end

    --- A call at position `at`, of the thing at `path` or of a method of a model.
    local function call(span, path, at)
      local commas, constructor = span:match("^%(([^(){}]-)(%b{})%)", at)
      constructor = constructor or span:match("^ ?(%b{})", at)
      if not constructor then return end
      local ok, help = pcall(tm.help, path)
      if ok then
        for _, key in ipairs(keys(constructor)) do
          seen[#seen + 1] = path .. "." .. key
          assert.is_truthy(help:find(key, 1, true), path .. ": " .. key)
        end
      else
        check(path, thing(path), constructor, (table.unpack or unpack)(before[path] or leading(commas or "")))
      end
    end

    for _, span in ipairs(spans) do
      for path, at in span:gmatch "%f[%w]tm%.([%a_][%w_.]*)()" do call(span, path, at) end
      local compiled = span:match "compile(%b{})"
      if compiled then check("compile", model.compile, compiled, model) end
      local fitted = span:match "model:fit%([^(){}]-(%b{})%)"
      if fitted then check("fit", model.fit, fitted, model, 1) end
    end
    assert.is_true(#seen > 30, table.concat(seen, " "))
  end)

  it("links to files that there are", function()
    for path in text:gmatch "%]%(([^)]+)%)" do
      assert.is_truthy(named.read("docs/" .. path), path)
    end
  end)
end)
