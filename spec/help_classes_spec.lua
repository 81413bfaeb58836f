-- Closed lists of names, tm.help of classes, and docs/layers.md, which lists them all.
local tm = require "tidemill"
local named = dofile "spec/tools/named.lua"
local options = require "tidemill.lib.options"

local groups = { "layers", "optimizers", "losses", "metrics", "callbacks" }
local bases = { Layer = true, Optimizer = true, Loss = true, Metric = true, Callback = true, LambdaCallback = true }

local function classes(group)
  local out = {}
  for _, name in ipairs(group == "callbacks" and tm.callbacks.names() or {}) do out[name] = tm.callbacks[name] end
  for name, c in pairs(tm[group]) do
    if type(c) == "table" and rawget(c, "class_name") then out[name] = c end
  end
  return out
end

local function asked(class)
  return options.asked(class, { name = "help" }) or options.asked(class, "path", {})
    or options.asked(class, function() end, {}) or {}
end

describe("a name that there is not", function()
  it("raises with the nearest one", function()
    for where, near in pairs { ["layers.Dens"] = 'layer "Dens"; did you mean "Dense"?',
      ["optimizers.Adm"] = 'optimizer "Adm"; did you mean "Adam"?',
      ["losses.Hubber"] = 'loss "Hubber"; did you mean "Huber"?',
      ["metrics.Acuracy"] = 'metric "Acuracy"; did you mean "Accuracy"?',
      ["callbacks.EarlyStoping"] = 'callback "EarlyStoping"; did you mean "EarlyStopping"?',
      ["data.cvs"] = 'source of tm.data "cvs"; did you mean "csv"?' } do
      local group, name = where:match "(%a+)%.(%a+)"
      local ok, e = pcall(function() return tm[group][name] {} end)
      assert.is_false(ok)
      assert.equal("invalid_argument", e.code)
      assert.equal("tidemill: unknown " .. near, e.message)
    end
  end)

  it("is nil where it begins with _, is no string, or is asked for by rawget", function()
    for _, group in ipairs { "layers", "optimizers", "losses", "metrics", "callbacks", "data" } do
      assert.is_nil(tm[group]._none)
      assert.is_nil(tm[group][1])
      assert.is_nil(rawget(tm[group], "None"))
      assert.is_truthy(next(tm[group]))
    end
  end)

  it("is still one's own to give to compile", function()
    local Mine = tm.losses.Loss:extend "MyOwn"
    function Mine.call(_, y, p) return tm.abs(y - p) end
    local m = tm.Sequential { tm.layers.Dense { units = 1 } }
    m:compile { loss = Mine(), metrics = { "mse", "huber", "mean_squared_error" } }
    assert.is_truthy(m:evaluate(tm.ones { 4, 2 }, { y = tm.ones { 4, 1 }, verbose = 0 }).loss)
  end)
end)

describe("tm.help", function()
  it("tells the options of every class", function()
    for _, group in ipairs(groups) do
      for name, class in pairs(classes(group)) do
        local text = tm.help(("tm.%s.%s"):format(group, name))
        assert.equal(1, (text:find(("tm.%s.%s"):format(group, name), 1, true)))
        for k, v in pairs(asked(class)) do
          assert.is_truthy(text:find(type(k) == "number" and v or k, 1, true), text)
        end
      end
    end
    assert.is_truthy(tm.help "Dense":find("use_bias = true", 1, true))
    assert.is_truthy(tm.help "Dense":find("Dense{ units", 1, true)) -- of its file
    assert.is_truthy(tm.help(tm.layers.Dropout):find "^tm.layers.Dropout{")
    assert.is_nil(tm.help(tm.layers.Dropout):find("tm.data", 1, true))
    local _, both = tm.help "Hinge":gsub("tm%.%a+%.Hinge", "")
    assert.equal(2, both)
  end)

  it("tells sources and methods of datasets", function()
    assert.is_truthy(tm.help "csv":find("tm.data.csv{ check, columns", 1, true))
    assert.is_truthy(tm.help "csv":find("Rows of csv files", 1, true))
    assert.is_truthy(tm.help "shuffle":find("dataset:shuffle", 1, true))
    assert.is_truthy(tm.help(tm.data.range):find("tm.data.range", 1, true))
  end)

  it("lists all names without an argument", function()
    local text = tm.help()
    for _, name in ipairs { "matmul", "nn.relu", "Dense", "Adam", "Huber", "AUC", "TensorBoard", "csv",
      "dataset:map" } do
      assert.is_truthy(text:find(name, 1, true), name)
    end
  end)

  it("suggests classes", function()
    local ok, e = pcall(tm.help, "Dens")
    assert.is_false(ok)
    assert.equal("not_found", e.code)
    assert.is_truthy(e.message:find('did you mean "Dense"?', 1, true))
  end)

  it("makes nothing", function()
    local name = tm.layers.Flatten().name
    local n = tonumber(name:match "%d+$" or 0)
    tm.help "Flatten"
    assert.equal("flatten_" .. n + 1, tm.layers.Flatten().name)
  end)
end)

describe("docs/layers.md", function()
  local text = named.read "docs/layers.md"

  it("lists every class with its options", function()
    for _, group in ipairs(groups) do
      local section = text:match("\n## %a+: `tm%." .. group .. "`\n(.-)\n## ")
        or text:match("\n## %a+: `tm%." .. group .. "`\n(.*)$")
      for name, class in pairs(classes(group)) do
        if not bases[name] then
          local row = section:match("\n| `" .. name .. "` | ([^\n]*)")
          assert.is_truthy(row, name)
          for k, v in pairs(asked(class)) do
            local option = type(k) == "number" and v or k
            assert.is_truthy(row:find("`" .. option, 1, true) or section:match "^(.-)\n| ":find("`" .. option, 1, true),
              name .. "." .. option)
          end
        end
      end
      for name in section:gmatch "\n| `(%a%w+)`" do assert.is_truthy(classes(group)[name], name) end
    end
  end)

  it("has a block that runs", function()
    local env = setmetatable({ print = function() end }, { __index = _G })
    assert(load(text:match "```lua\n(.-)```", "=doc", "t", env))()
  end)
end)
