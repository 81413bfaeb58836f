-- Metrics against tf-keras's numbers (spec/fixtures/keras_metrics.py).
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_metrics.lua"

local unpack = rawget(table, "unpack") or rawget(_G, "unpack")

local function value(t)
  if t.rank == 0 then return t:item() end
  return t:totable()
end

local function args_of(c, batch)
  local list = {}
  for i, x in ipairs(batch.args) do
    local ids = c.metric == "Accuracy" or ((c.metric:match "^Sparse" or c.metric == "TopK") and i == 1)
    list[i] = tm.tensor(x, ids and "int64" or "float32")
  end
  list[#list + 1] = batch.weights and tm.tensor(batch.weights) or nil
  return unpack(list)
end

describe("metrics", function()
  for n, c in ipairs(keras.cases) do
    it(("%s agrees with Keras (case %d)"):format(c.metric, n), function()
      local m = tm.metrics[c.metric](c.options)
      for k, batch in ipairs(c.batches) do
        m:update_state(args_of(c, batch))
        close.check(value(m:result()), c.results[k], 1e-5, 2e-6)
      end
    end)
  end

  it("reset_states goes back to the start", function()
    local m = tm.metrics.Mean()
    m:update_state(tm.tensor { 1, 3 })
    assert.equal(2, m:result():item())
    m:reset_states()
    assert.equal(0, m:result():item())
    m:update_state(5)
    assert.equal(5, m:result():item())
  end)

  it("update_state works in a traced function", function()
    local m = tm.metrics.AUC()
    local f = tm.func(function(y, p) m:update_state(y, p) end)
    local y, p = tm.tensor { { 0 }, { 1 }, { 1 } }, tm.tensor { { 0.2 }, { 0.9 }, { 0.1 } }
    f(y, p)
    local other = tm.metrics.AUC()
    other:update_state(y, p)
    close.check(m:result():item(), other:result():item())
  end)

  it("a metric made during a trace keeps its state", function()
    local m
    local f = tm.func(function(x)
      m = m or tm.metrics.Mean()
      m:update_state(x)
    end)
    f(tm.tensor { 1, 2 })
    f(tm.tensor { 3, 6 })
    assert.equal(3, m:result():item())
  end)

  it("a metric of one's own has weights, update_state and result", function()
    local Count = tm.metrics.Metric:extend "Count"
    function Count:init() self.n = self:add_weight { name = "n" } end
    function Count:update_state(x) self.n:assign_add(tm.cast(tm.size_of(x), "float32")) end
    function Count:result() return self.n:read() end
    local m = Count { name = "mine" }
    m:update_state(tm.zeros { 2, 3 })
    assert.equal(6, m(tm.zeros { 0 }):item())
    assert.equal("mine", m.name)
    assert.equal(1, #m.variables)
  end)

  it("AUC refuses what is no probability", function()
    local ok, e = pcall(function() tm.metrics.AUC():update_state(tm.tensor { 1 }, tm.tensor { 1.5 }) end)
    assert.is_false(ok)
    assert.truthy(tostring(e):find("from_logits", 1, true))
  end)

  it("an unknown option is refused with the nearest name", function()
    local ok, e = pcall(tm.metrics.AUC, { num_threshold = 10 })
    assert.is_false(ok)
    assert.truthy(e.message:find("num_thresholds", 1, true))
  end)
end)
