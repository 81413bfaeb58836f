local tm = require "tidemill"
local list = require "tidemill.callbacks.list"

local Callback = tm.callbacks.Callback

local function logged(fn)
  local path = os.tmpname()
  tm.log.to(path, "warn")
  local ok, err = pcall(fn)
  tm.log.to(nil)
  local f = assert(io.open(path))
  local text = f:read "*a"
  f:close()
  os.remove(path)
  assert(ok, err)
  return text
end

describe("a list of callbacks", function()
  it("calls plain tables and objects in order, each with itself first", function()
    local seen = {}
    local Mine = Callback:extend("Mine")
    function Mine:on_epoch_end(epoch, logs) seen[#seen + 1] = { self, epoch, logs.loss } end
    local a, b = { on_epoch_end = function(cb, epoch, logs) seen[#seen + 1] = { cb, epoch, logs.loss } end }, Mine()
    list.new({ a, { b } }, "the model"):call("on_epoch_end", 3, { loss = 0.5 })
    assert.equal(a, seen[1][1])
    assert.equal(b, seen[2][1])
    assert.same({ 3, 0.5 }, { seen[2][2], seen[2][3] })
  end)

  it("gives each the model and the parameters, by set_model and set_params where they are", function()
    local given = {}
    local plain, own, object = { mine = true }, { set_model = function(_, m) given[1] = m end,
      set_params = function(_, p) given[2] = p end }, Callback()
    list.new({ plain, own, object }, "the model", { epochs = 2 })
    assert.equal("the model", plain.model)
    assert.equal(2, plain.params.epochs)
    assert.same({ "the model", { epochs = 2 } }, given)
    assert.is_nil(own.model)
    assert.equal("the model", object.model)
  end)

  it("uses on_batch_begin and on_batch_end where those of train are absent", function()
    local seen = {}
    local l = list.new { { on_batch_end = function(_, n) seen[#seen + 1] = n end },
      { on_batch_end = function() error "not this" end, on_train_batch_end = function(_, n) seen[#seen + 1] = -n end } }
    l:call("on_train_batch_end", 7, {})
    assert.same({ 7, -7 }, seen)
    assert.is_true(l:wants_batches "train")
    assert.is_false(l:wants_batches "test")
  end)

  it("wants no batches of a class that defines no batch hook", function()
    local Mine = Callback:extend("Mine")
    function Mine.on_epoch_end() end
    local l = list.new { Mine() }
    for _, kind in ipairs { "train", "test", "predict" } do assert.is_false(l:wants_batches(kind)) end
    function Mine.on_predict_batch_begin() end
    assert.is_true(l:wants_batches "predict")
  end)

  it("saving after so many batches is no looking at batches, only a barrier", function()
    local l = list.new { tm.callbacks.ModelCheckpoint("x", { save_freq = 30 }), tm.callbacks.BackupAndRestore("y",
      { save_freq = 20 }) }
    for _, cb in ipairs(l.callbacks) do cb._seen, cb._since = 0, 0 end
    assert.is_false(l:wants_batches "train")
    assert.equal(20, l:barrier())
    l.callbacks[2]._since = -15 -- it has saved five batches ago
    assert.equal(30, l:barrier())
    assert.is_nil(list.new({ tm.callbacks.History() }):barrier())
  end)

  it("never looks into logs", function()
    local logs = setmetatable({}, { __index = function() error "looked" end })
    list.new({ { on_batch_end = function() end } }):call("on_train_batch_end", 1, logs)
  end)

  it("passes an error of a callback on as it was raised", function()
    local err = { "mine" }
    local _, got = pcall(function()
      list.new({ { on_train_begin = function() error(err) end } }):call "on_train_begin"
    end)
    assert.equal(err, got)
  end)

  it("takes one callback for a list of one", function()
    local n = 0
    list.new({ on_train_begin = function() n = n + 1 end }):call "on_train_begin"
    list.new(Callback()):call "on_train_begin"
    assert.equal(1, n)
  end)

  it("tells of a misspelt hook and suggests the right one", function()
    local Mine = Callback:extend("Mine")
    function Mine.on_train_ends() end
    local text = logged(function() list.new { { on_epoch_ends = function() end }, Mine() } end)
    assert.matches('callbacks%[1%] has a method "on_epoch_ends".*did you mean "on_epoch_end"', text)
    assert.matches('Mine has a method "on_train_ends".*did you mean "on_train_end"', text)
  end)

  it("refuses what is no callback, and a class in place of its object", function()
    local ok, err = pcall(list.new, { {}, 5 })
    assert.is_false(ok)
    assert.matches("callbacks%[2%] is no callback but a number", tostring(err))
    ok, err = pcall(list.new, { tm.callbacks.History })
    assert.is_false(ok)
    assert.matches("History%(%)", tostring(err))
  end)
end)

describe("History", function()
  it("keeps a number an epoch", function()
    local h = tm.callbacks.History()
    h:on_epoch_end(1, { loss = 2 })
    h:on_epoch_end(2, { loss = 1, val_loss = 3 })
    assert.same({ loss = { 2, 1 }, val_loss = { 3 } }, h.history)
    assert.same({ 1, 2 }, h.epoch)
  end)
end)
