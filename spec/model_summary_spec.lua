-- model:summary(): the table of layers.
local tm = require "tidemill"
local L, D = tm.layers, tm.distribute
local width = require("tidemill.lib.text").width

local function lines_of(model, o)
  local lines = {}
  o = o or {}
  o.print_fn = function(s) lines[#lines + 1] = s end
  model:summary(o)
  return lines, table.concat(lines, "\n")
end

--- The cells of the row that begins with a name.
local function row(lines, name)
  for _, line in ipairs(lines) do
    if line:find("^[ |]*" .. name .. " %(") then
      local cells = {}
      for cell in (line:gsub("^[ |]+", "") .. "  "):gmatch "(.-)%s%s+" do cells[#cells + 1] = cell end
      return cells
    end
  end
  error("no row " .. name .. " in\n" .. table.concat(lines, "\n"), 2)
end

describe("a model's summary", function()
  it("lists layers with types, shapes and parameters, and adds them up", function()
    local m = tm.Sequential { L.Dense { units = 20, input_shape = { 100 }, name = "wide" },
      L.Dropout { rate = 0.5, name = "drop" }, L.Dense { units = 1, name = "last", trainable = false }, name = "mine" }
    local lines, all = lines_of(m)
    assert.equal('Model: "mine"', lines[1])
    assert.equal(("_"):rep(65), lines[2])
    assert.truthy(lines[3]:find "^ Layer %(type%) +Output Shape +Param #$")
    assert.equal(("="):rep(65), lines[4])
    assert.same({ "wide (Dense)", "(None, 20)", "2,020" }, row(lines, "wide"))
    assert.same({ "drop (Dropout)", "(None, 20)", "0" }, row(lines, "drop"))
    assert.same({ "last (Dense)", "(None, 1)", "21" }, row(lines, "last"))
    assert.truthy(all:find("Total params: 2,041 (7.97 KB)\nTrainable params: 2,020 (7.89 KB)\n"
      .. "Non-trainable params: 21 (84.00 B)", 1, true))
    for _, line in ipairs(lines) do assert.is_true(width(line) <= 65, line) end
  end)

  it("tells what is connected to what where layers are no chain", function()
    local x = tm.Input { shape = { 4 }, name = "features" }
    local shared = L.Dense { units = 8, name = "shared" }
    local a, b = shared(x), shared(x * 2)
    local m = tm.Model { inputs = x, outputs = tm.reduce_mean(L.Add { name = "both" } { a, b }, 2) }
    local lines, all = lines_of(m)
    assert.same({ "features (InputLayer)", "(None, 4)", "0" }, row(lines, "features"))
    assert.same({ "shared (Dense)", "(None, 8)", "40", "features" }, row(lines, "shared"))
    assert.same({ "both (Add)", "(None, 8)", "0", "shared" }, row(lines, "both"))
    assert.truthy(all:find("reduce_mean (Op)", 1, true))
    assert.truthy(all:find "Total params: 40 ")
  end)

  it("shows the layers of models in it when they are wanted", function()
    local inner = tm.Sequential { L.Dense { units = 3, name = "one" }, L.Dense { units = 2, name = "two" },
      name = "inner" }
    local m = tm.Sequential { L.Dense { units = 4, input_shape = { 4 } }, inner }
    local _, all = lines_of(m)
    assert.is_nil(all:find("one (Dense)", 1, true))
    assert.same({ "inner (Sequential)", "(None, 2)", "23" }, row(lines_of(m), "inner"))
    local lines = lines_of(m, { expand_nested = true, show_trainable = true })
    assert.same({ "one (Dense)", "(None, 3)", "15", "Y" }, row(lines, "one"))
    assert.equal("|", row and lines[7]:sub(1, 1))
  end)

  it("says what is not built yet, and knows shapes once the model was called", function()
    local Mine = tm.Model:extend("Mine")
    function Mine:init()
      self.a, self.b = L.Dense { units = 3, name = "first" }, L.Dense { units = 1, name = "second" }
    end
    function Mine:call(x) return self.b(self.a(x)) end
    local m = Mine()
    local lines, all = lines_of(m)
    assert.same({ "first (Dense)", "?", "not built" }, row(lines, "first"))
    assert.truthy(all:find "Total params: 0 %(0.00 B%)")
    m(tm.ones { 2, 5 })
    assert.same({ "first (Dense)", "(None, 3)", "18" }, row(lines_of(m), "first"))
  end)

  it("says on which ps weights live, and in how many shards", function()
    local strategy = D.ParameterServerStrategy(D.local_cluster { workers = 1, ps = 2 },
      { variable_partitioner = D.partitioners.FixedShardsPartitioner { num_shards = 2 } })
    local m = strategy:scope(function()
      return tm.Sequential { L.Embedding { input_dim = 8, output_dim = 16384, input_shape = { 3 }, name = "table" } }
    end)
    local lines, all = lines_of(m)
    assert.truthy(lines[3]:find "Placed on$")
    assert.same({ "table (Embedding)", "(None, 3, 16384)", "131,072", "2 shards on ps 0, 1" }, row(lines, "table"))
    assert.truthy(all:find("On /job:ps/task:0: 256.00 KB\nOn /job:ps/task:1: 256.00 KB", 1, true))
    strategy:close()
  end)

  it("takes line_length, and refuses what it does not know", function()
    local m = tm.Sequential { L.Dense { units = 2, input_shape = { 3 }, name = ("a_long_name_"):rep(8) } }
    local lines = lines_of(m, { line_length = 40 })
    assert.equal(("_"):rep(40), lines[2])
    for _, line in ipairs(lines) do assert.is_true(#line <= 45, line) end
    assert.has_error(function() m:summary { line_lenght = 40 } end)
    assert.has_error(function() m:summary { positions = { 1 } } end)
  end)
end)
