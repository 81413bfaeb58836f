-- The small modules under layers and optimizers: classes, options, structures, seeds.
local tm = require "tidemill"
local class = require "tidemill.lib.class"
local options = require "tidemill.lib.options"
local seeds = require "tidemill.lib.seeds"
local values = require "tidemill.lib.values"

local function message(fn, ...)
  local ok, e = pcall(fn, ...)
  assert(not ok, "no error")
  assert.equal("invalid_argument", e.code)
  return e.message
end

describe("classes", function()
  local Point = class.new "Point"
  function Point:init(x) self.x = x end
  function Point.get:double() return 2 * self.x end
  function Point.set:double(v) self.x = v / 2 end
  function Point.get.fixed() return 1 end
  local Child = Point:extend "Child"
  function Child:init(x)
    Point.init(self, x)
    self.y = 1
    self.w = 2
  end

  it("inherit methods and properties", function()
    local c = Child(3)
    assert.equal(6, c.double)
    c.double = 10
    assert.equal(5, c.x)
    assert.is_true(class.is(c, Point))
    assert.is_false(class.is(Point(1), Child))
    assert.is_false(class.is("Child", Child))
  end)

  it("remember the order of fields", function() assert.same({ "x", "y", "w" }, Child(1)._fields) end)

  it("protect properties that can only be read", function()
    assert.truthy(message(function() Point(1).fixed = 2 end):find("Point.fixed", 1, true))
  end)

  it("need a name", function() message(Point.extend, Point) end)
end)

describe("options", function()
  it("fill in defaults, false and nil included", function()
    assert.same({ a = 1, b = false, c = 3 }, options.read("X", { c = 3 }, { "c", "d", a = 1, b = false }))
    assert.same({ a = 1 }, options.read("X", nil, { a = 1 }))
    assert.same({ a = false }, options.read("X", { a = false }, { a = true }))
  end)

  it("refuse what they do not know, and suggest", function()
    local m = message(options.read, "X", { unitz = 1 }, { "units", "name" })
    assert.truthy(m:find('did you mean "units"', 1, true))
    m = message(options.read, "X", { completely_different = 1 }, { "units" })
    assert.is_nil(m:find("did you mean", 1, true))
    message(options.read, "X", 3, {})
  end)

  it("make snake_case of class names", function()
    assert.equal("glorot_uniform", options.snake "GlorotUniform")
    assert.equal("auc", options.snake "AUC")
    assert.equal("max_pooling2d", options.snake "MaxPooling2D")
  end)

  it("find classes by name, in any case", function()
    for name, get in pairs { rmsprop = tm.optimizers.get, RMSprop = tm.optimizers.get, adam_w = tm.optimizers.get,
      mse = tm.losses.get, kl_divergence = tm.losses.get, auc = tm.metrics.get, l1_l2 = tm.regularizers.get } do
      assert.truthy(get(name).class_name)
    end
    assert.truthy(message(tm.optimizers.get, "rmspropp"):find("did you mean", 1, true))
  end)

  it("check numbers", function()
    assert.equal(3, options.count("X", "n", 3, 1))
    message(options.count, "X", "n", 0, 1)
    message(options.count, "X", "n", 1.5, 1)
    message(options.number, "X", "n", 0 / 0)
    message(options.number, "X", "n", 2, 0, 1)
  end)
end)

describe("inputs", function()
  it("become tensors in their structure", function()
    local x = values.input { a = { 1, 2 }, b = { { "x" } }, c = tm.ones { 1 } }
    assert.equal("float32", x.a.dtype)
    assert.equal("string", x.b.dtype)
    assert.same({ 1, 1 }, x.b.shape)
    assert.same({ 1 }, x.c.shape)
    assert.equal("int64", values.input(3, "int64").dtype)
    local list = values.input { tm.ones { 1 }, tm.ones { 2 } }
    assert.equal(2, #list)
  end)
end)

describe("seeds", function()
  it("go on, and begin anew with set_seed", function()
    tm.random.set_seed(9)
    local a, b = seeds.next(), seeds.next()
    assert(a ~= b)
    tm.random.set_seed(9)
    assert.equal(a, seeds.next())
    tm.random.set_seed(10)
    assert(a ~= seeds.next())
  end)
end)

describe("JSON", function()
  it("refuses what it would lose", function()
    local encode = require "tidemill.core".json_encode
    local function refused(x, why)
      local text, e = encode(x)
      assert.is_nil(text)
      assert.truthy(e:find(why, 1, true), e)
    end
    refused({ 1, a = 2 }, "keys of both kinds")
    refused({ a = { [2] = 1 } }, "keys of both kinds")
    refused({ ["a\0b"] = 1 }, "zero byte")
    refused({ ["\255"] = 1 }, "UTF-8")
    refused({ 1, "\255" }, "UTF-8")
    refused({ a = print }, "function")
    assert.equal('{"a":[1,[]],"b":1.5}', (encode({ b = 1.5, a = { 1, {} } }):gsub("{}", "[]")))
  end)
end)
