local tm = require "tidemill"

--- The error that fn raises, with this code and (part of a) text.
local raises = dofile("spec/tools/expect.lua").raises

local function t23() return tm.tensor { { 1, 2, 3 }, { 4, 5, 6 } } end

describe("tm.tensor", function()
  it("takes numbers, booleans, strings and nested lists", function()
    assert.equal("float32", tm.tensor(1).dtype)
    assert.equal("bool", tm.tensor { true, false }.dtype)
    assert.equal("string", tm.tensor { "a", "b" }.dtype)
    assert.same({ 2, 3 }, t23().shape)
    assert.equal(2, t23().rank)
    assert.equal(6, t23():size())
    assert.equal(2, #t23())
  end)

  it("keeps empty lists", function()
    assert.same({ 0 }, tm.tensor({}).shape)
    assert.same({ 2, 0 }, tm.tensor({ {}, {} }).shape)
  end)

  it("stacks tensors in a list", function()
    assert.same({ { 1, 2 }, { 3, 4 } }, tm.tensor({ tm.tensor { 1, 2 }, tm.tensor { 3, 4 } }):totable())
  end)

  it("gives back what it was given", function()
    local list = { { { 1, 2 }, { 3, 4 } }, { { 5, 6 }, { 7, 8 } } }
    for _, dtype in ipairs { "float32", "float64", "int32", "int64", "uint8" } do
      assert.same(list, tm.tensor(list, dtype):totable())
    end
    assert.equal("text", tm.tensor("text"):item())
    assert.equal(true, tm.tensor(true):item())
    assert.equal(9007199254740993, tm.tensor(9007199254740993, "int64"):item())
  end)

  it("refuses what is ragged, mixed, too large or broken", function()
    raises("invalid_argument", "ragged", function() tm.tensor { { 1, 2 }, { 3 } } end)
    raises("invalid_argument", "ragged", function() tm.tensor { 1, { 2 } } end)
    raises("invalid_argument", "mixes", function() tm.tensor { 1, "a" } end)
    raises("invalid_argument", "does not fit uint8", function() tm.tensor({ 300 }, "uint8") end)
    raises("invalid_argument", "not a whole number", function() tm.tensor({ 1.5 }, "int32") end)
    raises("invalid_argument", "no dtype", function() tm.tensor({ 1 }, "float23") end)
    raises("invalid_argument", "function", function() tm.tensor(print) end)
  end)
end)

describe("a subscript", function()
  it("takes one position of the first axis, from 1 or from the end", function()
    assert.same({ 1, 2, 3 }, t23()[1]:totable())
    assert.same({ 4, 5, 6 }, t23()[-1]:totable())
    assert.equal(6, t23()[2][3]:item())
  end)

  it("refuses 0, what is outside, fractions and tensors", function()
    raises("invalid_argument", "positions count from 1", function() return t23()[0] end)
    raises("out_of_range", "position 9", function() return t23()[9] end)
    raises("out_of_range", "position -3", function() return t23()[-3] end)
    raises("invalid_argument", "whole number", function() return t23()[1.5] end)
    raises("invalid_argument", "gather", function() return t23()[tm.tensor(1)] end)
    raises("invalid_argument", "scalar", function() return tm.tensor(1)[1] end)
  end)

  it("cannot assign", function()
    raises("invalid_argument", "tm.Variable", function() t23()[1] = 3 end)
  end)
end)

describe("slice", function()
  local five = tm.tensor { 1, 2, 3, 4, 5 }
  local cases = {
    { { 2 }, { 2, 3, 4, 5 } }, { {}, { 1, 2, 3, 4, 5 } }, { { 2, 4 }, { 2, 3, 4 } }, { { -2 }, { 4, 5 } },
    { { 1, -2 }, { 1, 2, 3, 4 } }, { { 1, 5, 2 }, { 1, 3, 5 } }, { { -1, 1, -1 }, { 5, 4, 3, 2, 1 } },
    { { 4, 2, -2 }, { 4, 2 } }, { { 2, 99 }, { 2, 3, 4, 5 } }, { { -99, 2 }, { 1, 2 } }, { { 4, 3 }, {} },
    { { 9, 12 }, {} }, { { 99, 4, -1 }, { 5, 4 } }, { { 5, 1, -3 }, { 5, 2 } },
  }
  it("has Lua's ranges", function()
    for _, c in ipairs(cases) do
      assert.same(c[2], five:slice({ c[1] }):totable(), table.concat(c[1], ","))
    end
  end)

  it("takes ranges, positions and all, one entry an axis", function()
    assert.same({ 6, 5, 4 }, t23():slice({ 2, { -1, 1, -1 } }):totable())
    assert.same({ { 2 }, { 5 } }, t23():slice({ {}, { 2, 2 } }):totable())
    assert.same({ 2, 5 }, tm.slice(t23(), { [2] = 2 }):totable())
    assert.same({ { 4, 5, 6 } }, t23():slice({ { 2 } }):totable())
    assert.equal(5, t23():slice({ 2, 2 }):item())
  end)

  it("refuses positions outside, 0, and a step of 0", function()
    raises("out_of_range", "position 3", function() t23():slice { 3 } end)
    raises("invalid_argument", "positions count from 1", function() t23():slice { { 0, 1 } } end)
    raises("invalid_argument", "step", function() t23():slice { { 1, 2, 0 } } end)
    raises("invalid_argument", "3 ranges", function() t23():slice { {}, {}, {} } end)
    raises("invalid_argument", "gather", function() t23():slice { tm.tensor(1) } end)
  end)

  it("has narrow and select beside it", function()
    assert.same({ { 2, 3 }, { 5, 6 } }, t23():narrow(2, 2, 2):totable())
    assert.same({ 3, 6 }, t23():select(-1, -1):totable())
    assert.same({ 2, 0 }, t23():narrow(2, 1, 0).shape)
    raises("out_of_range", "reach past", function() t23():narrow(2, 2, 3) end)
    raises("invalid_argument", "positions count from 1", function() t23():select(0, 1) end)
  end)
end)

describe("operators", function()
  it("broadcast, on either side of a number", function()
    assert.same({ { 2, 4, 6 }, { 5, 7, 9 } }, (t23() + tm.tensor { 1, 2, 3 }):totable())
    assert.same({ 3, 2, 1 }, (4 - t23()[1]):totable())
    assert.same({ 2, 1 }, (2 / tm.tensor { 1, 2 }):totable())
    assert.same({ 1, 4, 9 }, (t23()[1] ^ 2):totable())
    assert.same({ -1, -2, -3 }, (-t23()[1]):totable())
    assert.same({ 1, 2 }, (tm.tensor({ -5, 5 }, "int32") % 3):totable())
  end)

  it("give a number the tensor's dtype", function()
    assert.equal("int32", (tm.tensor({ 1 }, "int32") + 1).dtype)
    assert.equal("float64", (1 + tm.tensor({ 1 }, "float64")).dtype)
    raises("invalid_argument", "not a whole number", function() return tm.tensor({ 1 }, "int32") + 0.5 end)
  end)

  it("refuse two dtypes, naming cast", function()
    raises("invalid_argument", "cast", function() return tm.tensor { 1 } + tm.tensor({ 1 }, "float64") end)
    raises("invalid_argument", "cast", function() return tm.tensor { 1 } + "a" end)
  end)

  it("compare scalars, and refuse more", function()
    assert.is_true(tm.tensor(1) < tm.tensor(2))
    assert.is_false(tm.tensor(1) >= tm.tensor(2))
    raises("invalid_argument", "a:less(b)", function() return t23() < t23() end)
  end)
end)

describe("text and values", function()
  it("prints with shape and dtype, summarised when large", function()
    assert.equal("[1, 2, 3]\n(3) float32", tostring(t23()[1]))
    assert.is_true(#tostring(tm.zeros { 200, 200 }) < 2000)
  end)

  it("item wants one element", function()
    assert.equal(7, tm.tensor({ { 7 } }):item())
    raises("invalid_argument", "(2, 3)", function() t23():item() end)
  end)

  it("len wants an axis", function()
    raises("invalid_argument", "scalar", function() return #tm.tensor(1) end)
  end)

  it("allclose compares element by element", function()
    assert.is_true(tm.allclose(t23(), t23() + 1e-9))
    assert.is_false(tm.allclose(t23(), t23() + 1))
    assert.is_true(tm.allclose(tm.tensor({ 1 }, "int32"), tm.tensor({ 1 }, "int32")))
    assert.is_true(tm.allclose(t23(), { { 1, 2, 3 }, { 4, 5, 6.1 } }, 0, 0.2))
  end)
end)

describe("memory", function()
  it("is collected by the bytes that tensors hold", function()
    collectgarbage()
    local most = 0
    for _ = 1, 200 do
      local x = tm.zeros { 512, 512 }
      most = math.max(most, (require("tidemill.core").memory()))
      assert(x)
    end
    assert.is_true(most < 150e6, ("%d bytes"):format(most))
  end)
end)
