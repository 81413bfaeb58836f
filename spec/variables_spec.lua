local tm = require "tidemill"

local raises = dofile("spec/tools/expect.lua").raises

local function table32() return tm.Variable({ { 1, 2 }, { 3, 4 }, { 5, 6 } }, { name = "table" }) end

describe("tm.Variable", function()
  it("says what it is", function()
    local v = table32()
    assert.same({ 3, 2 }, v.shape)
    assert.equal("float32", v.dtype)
    assert.equal("table", v.name)
    assert.is_true(v.trainable)
    assert.equal("/job:chief/task:0", v.device)
    assert.equal(1, #v.variables)
    assert.equal(v, v.variables[1])
    assert.is_true(tm.is_variable(v))
    assert.is_false(tm.is_variable(v:read()))
  end)

  it("stands where a tensor may", function()
    local v = table32()
    assert.same({ 3, 4 }, v[2]:totable())
    assert.same({ { 2, 3 }, { 4, 5 }, { 6, 7 } }, (v + 1):totable())
    assert.same({ 9, 12 }, v:reduce_sum(1):totable())
    assert.same({ { 5, 6 } }, v:slice({ { -1 } }):totable())
    if _VERSION ~= "Lua 5.1" then assert.equal(3, #v) end -- LuaJIT asks no table for its length
    assert.equal(2, v.rank)
  end)

  it("is assigned, and returns itself", function()
    local v = tm.Variable { 1, 2 }
    assert.same({ 13, 24 }, v:assign({ 10, 20 }):assign_add({ 4, 4 }):assign_sub({ 1, 0 }):read():totable())
    raises("invalid_argument", "shape", function() v:assign { 1, 2, 3 } end)
  end)

  it("has rows", function()
    local v = table32()
    assert.same({ { 5, 6 }, { 1, 2 } }, v:sparse_read({ 2, 0 }):totable())
    assert.same({ { 9, 9 }, { 3, 4 }, { 8, 8 } }, v:scatter_update({ 0, 2 }, { { 9, 9 }, { 8, 8 } }):read():totable())
    assert.same({ 11, 11 }, v:scatter_add({ 0, 0 }, { { 1, 1 }, { 1, 1 } })[1]:totable())
    assert.same({ 7, 7 }, v:scatter_sub({ 2 }, { { 1, 1 } })[3]:totable())
  end)

  it("refuses ids that do not exist, everywhere", function()
    local v = table32()
    raises("invalid_argument", "no row 3", function() v:sparse_read { 3 } end)
    raises("invalid_argument", "no row -1", function() v:sparse_read { -1 } end)
    raises("invalid_argument", "no row 7", function() v:scatter_add({ 7 }, { { 1, 1 } }) end)
    raises("invalid_argument", "no row 9", function() tm.nn.embedding_lookup(v, { 9 }) end)
  end)

  it("begins with a function's piece", function()
    local seen
    local v = tm.Variable(function(shape, dtype, offset, full)
      seen = { shape, dtype, offset, full }
      return tm.ones(shape, dtype)
    end, { shape = { 2, 3 } })
    assert.same({ 2, 3 }, seen[1])
    assert.equal("float32", seen[2])
    assert.same({ 2, 3 }, v.shape)
    raises("invalid_argument", "shape", function() tm.Variable(function() end) end)
  end)

  it("keeps whole numbers whole", function()
    local v = tm.Variable(0, { dtype = "int64" })
    v:assign_add(1)
    assert.equal(1, v:read():item())
    assert.is_false(v.trainable)
    raises("invalid_argument", "whole number", function() v:assign(0.5) end)
  end)

  it("suggests the nearest option and is not compared", function()
    raises("invalid_argument", 'did you mean "trainable"', function() tm.Variable(0, { trainabel = true }) end)
    raises("invalid_argument", "tm.cond", function() return tm.Variable(0) < tm.Variable(1) end)
  end)

  it("goes when nobody holds it", function()
    local core = require "tidemill.core"
    collectgarbage()
    collectgarbage()
    local _, before = core.memory()
    for _ = 1, 20 do tm.Variable(tm.zeros { 1000, 100 }) end
    collectgarbage()
    collectgarbage()
    local _, after = core.memory()
    assert.is_true(after - before < 1e6, ("%d bytes more"):format(after - before))
  end)
end)
