-- Checkpoints: what is saved comes back, wherever variables live and however they are cut.
local tm = require "tidemill"
local close = dofile "spec/close.lua"

local train = tm.train

local expect = dofile "spec/tools/expect.lua"
local raises, fails = expect.raises, expect.fails

local X = tm.tensor { { 1, 2, 3 }, { 4, 5, 6 } }

local function dense_model()
  return tm.Sequential { tm.layers.Dense { units = 4, activation = "tanh" }, tm.layers.Dense { units = 1 } }
end

local function step_of(model, optimizer)
  return function()
    local tape = tm.GradientTape()
    local loss = tm.reduce_mean(tm.square(model(X) - 1))
    optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
    return loss:item()
  end
end

local function names(path)
  local out = {}
  for i, v in ipairs(assert(train.list_variables(path))) do out[i] = v.name end
  return out
end

describe("tm.train", function()
  local dir

  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
  end)
  after_each(function() os.execute("rm -rf '" .. dir .. "'") end)

  describe("Checkpoint", function()
    for _, name in ipairs { "SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "AdamW", "Adamax", "Nadam", "Ftrl" } do
      it(("continues with %s as if nothing had happened, before variables exist and after"):format(name), function()
        local o = { learning_rate = 0.1 }
        if name == "SGD" then o.momentum = 0.9 end
        if name == "RMSprop" then o.momentum, o.centered = 0.9, true end
        if name == "Adam" then o.amsgrad = true end
        local model, optimizer = dense_model(), tm.optimizers[name](o)
        local step = step_of(model, optimizer)
        step()
        step()
        local path = assert(train.Checkpoint { model = model, optimizer = optimizer }:save(dir .. "/ckpt"))
        local want = { step(), step() }

        local before, o1 = dense_model(), tm.optimizers[name](o)
        local status = assert(train.Checkpoint { model = before, optimizer = o1 }:restore(path))
        local step1 = step_of(before, o1)
        assert.same(want, { step1(), step1() })
        status:assert_consumed()

        local after, o2 = dense_model(), tm.optimizers[name](o)
        local step2 = step_of(after, o2)
        step2()
        assert(train.Checkpoint { model = after, optimizer = o2 }:restore(path)):assert_consumed()
        assert.same(want, { step2(), step2() })
      end)
    end

    it("names things by fields and positions, not by automatic names", function()
      local model, optimizer = dense_model(), tm.optimizers.SGD { learning_rate = 0.5, momentum = 0.9 }
      step_of(model, optimizer)()
      local path = assert(train.Checkpoint { net = model, o = optimizer, list = { tm.Variable(1), tm.Variable(2) },
        ["a/b.c"] = tm.Variable(3) }:write(dir .. "/w"))
      assert.equal(dir .. "/w", path)
      assert(train.Checkpoint { net = dense_model() }:restore(path)):assert_existing_objects_matched()
      assert.same({ "a.Sb..c", "list/1", "list/2", "net/layers/1/bias", "net/layers/1/kernel", "net/layers/2/bias",
        "net/layers/2/kernel", "o/iterations", "o/learning_rate", "o/slots/momentum/net/layers/1/bias",
        "o/slots/momentum/net/layers/1/kernel", "o/slots/momentum/net/layers/2/bias",
        "o/slots/momentum/net/layers/2/kernel" }, names(path))
      local v = train.list_variables(path)[5]
      assert.same({ "net/layers/1/kernel", "float32" }, { v.name, v.dtype })
      assert.same({ 3, 4 }, v.shape)
      assert.is_true(tm.allclose(model.layers[1].kernel, train.load_variable(path, "net/layers/1/kernel")))
      fails("not_found", "no/such", train.load_variable(path, "no/such"))
      fails("not_found", "nowhere", train.list_variables(dir .. "/nowhere"))
    end)

    it("keeps plain values, nested, and those that the new structure lacks", function()
      local c = train.Checkpoint { epoch = 3, rate = 0.1, text = "ж\0\255", flag = false,
        t = { 1, "two", { x = 1 / 0 } } }
      c.more = "later"
      local path = assert(c:save(dir .. "/c"))
      local d = train.Checkpoint { epoch = 0, t = { 5 } }
      assert(d:restore(path)):assert_consumed()
      assert.same({ 3, 0.1, "ж\0\255", false, "later" }, { d.epoch, d.rate, d.text, d.flag, d.more })
      assert.same({ 1, "two", { x = 1 / 0 } }, d.t)
      if math.type then assert.equal("integer", math.type(d.epoch)) end -- LuaJIT has one kind of number
      assert.equal(1, d.save_counter:read():item())
    end)

    it("keeps metrics, functional and subclassed models, and the state of random numbers", function()
      local Net = tm.Model:extend("Net")
      function Net:init()
        self.blocks = { tm.layers.Dense { units = 2 }, { last = tm.layers.Dense { units = 1 } } }
        self.scale = tm.Variable(2)
      end
      function Net:call(x) return self.blocks[2].last(self.blocks[1](x)) * self.scale end
      local x = tm.Input { shape = { 3 } }
      local function make()
        local m = tm.metrics.Mean()
        return { net = Net(), f = tm.Model { inputs = x, outputs = tm.layers.Dense { units = 2 }(x) }, m = m,
          random = tm.random }
      end
      local a = make()
      a.m:update_state(tm.tensor { 1, 2, 6 })
      local want, fwant = a.net(X), a.f(X)
      tm.random.set_seed(5)
      tm.random.normal { 2 }
      local path = assert(train.Checkpoint(a):save(dir .. "/c"))
      local drawn = tm.random.normal { 3 }:totable()
      local b = make()
      local status = assert(train.Checkpoint(b):restore(path))
      assert.same(drawn, tm.random.normal { 3 }:totable())
      close.check(b.net(X):totable(), want:totable(), 0, 0)
      close.check(b.f(X):totable(), fwant:totable(), 0, 0)
      assert.equal(3, b.m:result():item())
      status:assert_consumed()
      assert.same({ "f/layers/1/bias", "f/layers/1/kernel", "m/count", "m/total", "net/blocks/1/bias",
        "net/blocks/1/kernel", "net/blocks/2/last/bias", "net/blocks/2/last/kernel", "net/scale", "save_counter" },
        names(path))
    end)

    it("keeps tensors of strings, with any bytes in them", function()
      local list = { "", "жук", "a\0b\255", ("x"):rep(1000) }
      local path = assert(train.Checkpoint { words = tm.tensor(list), one = tm.tensor "s",
        none = tm.tensor { "x" }:slice { { 2, 1 } } }:save(dir .. "/c"))
      local c = train.Checkpoint { words = tm.tensor { "old", "o", "o", "o" }, one = tm.tensor "",
        none = tm.tensor { "x" }:slice { { 2, 1 } } }
      assert(c:restore(path)):assert_consumed()
      assert.same(list, c.words:totable())
      assert.equal("s", c.one:item())
      assert.same(list, assert(train.load_variable(path, "words")):totable())
      assert.same({ 0 }, c.none.shape)
    end)

    it("keeps what preprocessing layers learned, in models and alone", function()
      local words = tm.tensor { "b", "a", "b", "c", "b", "a" }
      local function make()
        return { lookup = tm.layers.StringLookup {}, ids = tm.layers.IntegerLookup { num_oov_indices = 0 },
          bins = tm.layers.Discretization { num_bins = 3 },
          model = tm.Sequential { tm.layers.Normalization {}, tm.layers.Dense { units = 1 } } }
      end
      local a = make()
      a.lookup:adapt(words)
      a.ids:adapt(tm.tensor({ 7, 7, 9 }, "int64"))
      a.bins:adapt(tm.tensor { 1, 2, 3, 4, 5, 6 })
      a.model.layers[1]:adapt(X)
      local want = a.model(X):totable()
      local path = assert(train.Checkpoint(a):save(dir .. "/c"))
      local b = make()
      local status = assert(train.Checkpoint(b):restore(path))
      assert.same({ "[UNK]", "b", "a", "c" }, b.lookup:get_vocabulary())
      assert.same({ 1, 0, 3 }, b.lookup(tm.tensor { "b", "z", "c" }):totable())
      assert.same({ 7, 9 }, b.ids:get_vocabulary())
      assert.same(a.bins.bin_boundaries, b.bins.bin_boundaries)
      assert.same(want, b.model(X):totable())
      status:assert_consumed()
      fails("invalid_argument", "string", train.Checkpoint { lookup = b.ids }:restore(path))
    end)

    it("restores what is built later when nobody keeps the checkpoint", function()
      local model = dense_model()
      local want = model(X):totable()
      local path = assert(train.Checkpoint { model = model }:save(dir .. "/c"))
      local fresh = dense_model()
      assert(train.Checkpoint { model = fresh }:restore(path))
      collectgarbage()
      collectgarbage()
      assert.same(want, fresh(X):totable())
      fresh.layers[1].bias:assign { 1, 2, 3, 4 }
      local other = dense_model()
      other(X)
      assert.same({ 1, 2, 3, 4 }, fresh.layers[1].bias:read():totable())
    end)

    it("forgets what nobody can fill any more", function()
      local path = assert(train.Checkpoint { model = tm.Variable(1), rest = tm.Variable(2) }:save(dir .. "/c"))
      local kept = setmetatable({}, { __mode = "k" })
      local function restore()
        local model = dense_model()
        kept[model] = true
        assert(train.Checkpoint { other = model, random = tm.random }:restore(path))
      end
      restore()
      collectgarbage()
      collectgarbage()
      assert.is_nil(next(kept))
    end)

    it("says so when a layer that is built later has another shape", function()
      local model = dense_model()
      model(X)
      local path = assert(train.Checkpoint { model = model }:save(dir .. "/c"))
      local wide = tm.Sequential { tm.layers.Dense { units = 5 }, tm.layers.Dense { units = 1 } }
      assert(train.Checkpoint { model = wide }:restore(path))
      raises("invalid_argument", "(3, 5) here", wide, X)
    end)

    it("restores a layer that builds inside a traced function", function()
      local model = dense_model()
      local want = model(X):totable()
      local path = assert(train.Checkpoint { model = model }:save(dir .. "/c"))
      local fresh = dense_model()
      local status = assert(train.Checkpoint { model = fresh }:restore(path))
      close.check(tm.func(function(x) return fresh(x) end)(X):totable(), want, 1e-6, 1e-6)
      status:assert_consumed()
    end)

    it("finds an object by each of its names", function()
      local v = tm.Variable { 1, 2 }
      local path = assert(train.Checkpoint { a = { v = v }, b = { v = v } }:save(dir .. "/c"))
      for _, key in ipairs { "a", "b" } do
        local w = tm.Variable { 0, 0 }
        assert(train.Checkpoint { [key] = { v = w } }:restore(path)):assert_existing_objects_matched()
        assert.same({ 1, 2 }, w:read():totable())
      end
      path = assert(train.Checkpoint { z = v }:save(dir .. "/d"))
      local w = tm.Variable { 0, 0 }
      assert(train.Checkpoint { a = w, z = w }:restore(path)):assert_existing_objects_matched()
      assert.same({ 1, 2 }, w:read():totable())
    end)

    it("says what is missing and what is unused", function()
      local path = assert(train.Checkpoint { a = tm.Variable(1), b = tm.Variable(2) }:save(dir .. "/c"))
      local status = assert(train.Checkpoint { a = tm.Variable(0), new = tm.Variable(0) }:restore(path))
      raises("failed_precondition", '"new"', status.assert_existing_objects_matched, status)
      status = assert(train.Checkpoint { a = tm.Variable(0) }:restore(path))
      assert.equal(status, status:assert_existing_objects_matched())
      raises("failed_precondition", '"b"', status.assert_consumed, status)
      assert.equal(status, status:expect_partial())
      status = assert(train.Checkpoint { other = tm.Variable(0) }:read(path))
      raises("failed_precondition", "nothing here", status.assert_nontrivial_match, status)
      status = train.Checkpoint { a = tm.Variable(0) }:restore(nil)
      raises("failed_precondition", "nothing was restored", status.assert_existing_objects_matched, status)
    end)

    it("restores by names too, whatever the structure is", function()
      local net = { a = tm.Variable { 1, 2 }, b = tm.Variable(3) }
      local path = assert(train.Checkpoint { net = net }:write(dir .. "/c"))
      local x, y = tm.Variable { 0, 0 }, tm.Variable(0)
      local c = train.Checkpoint {}
      local status = assert(c:read(path, { names = { ["net/a"] = x } }))
      assert.same({ 1, 2 }, x:read():totable())
      raises("failed_precondition", '"net/b"', status.assert_consumed, status)
      assert(c:read(path, { names = { ["net/a"] = x, ["net/b"] = y } })):assert_consumed()
      assert.equal(3, y:read():item())
      status = assert(c:read(path, { names = { ["net/none"] = y } }))
      raises("failed_precondition", '"net/none"', status.assert_existing_objects_matched, status)
      fails("invalid_argument", "float32 of shape (2) here", c:read(path, { names = { ["net/b"] = x } }))
      raises("invalid_argument", "no variable", c.read, c, path, { names = { a = {} } })
      raises("invalid_argument", "did you mean", c.read, c, path, { name = {} })
    end)

    it("changes nothing when a dtype or shape is another", function()
      local path = assert(train.Checkpoint { a = tm.Variable(1), b = tm.Variable { 1, 2 } }:save(dir .. "/c"))
      local a = tm.Variable(7)
      local c = train.Checkpoint { a = a, b = tm.Variable { 1, 2, 3 } }
      fails("invalid_argument", '"b" is float32 of shape (2)', c:restore(path))
      fails("invalid_argument", "float32 of shape (3) here", c:restore(path))
      fails("invalid_argument", "int64", train.Checkpoint { a = tm.Variable(tm.tensor(1, "int64")) }:restore(path))
      assert.equal(7, a:read():item())
    end)

    it("refuses what cannot be saved, and gives errors of the disk back", function()
      raises("invalid_argument", '"t/f" is a function',
        function() return train.Checkpoint { t = { f = print } }:save(dir .. "/c") end)
      raises("invalid_argument", "save", function() train.Checkpoint { save = 1 } end)
      raises("invalid_argument", "path", function() return train.Checkpoint {}:save(3) end)
      local c = train.Checkpoint { a = tm.Variable(1) }
      os.execute(("mkdir -p '%s' && touch '%s/file'"):format(dir, dir))
      fails("not_found", dir, c:restore(dir .. "/none"))
      fails("invalid_argument", dir .. "/file", c:save(dir .. "/file/ckpt"))
      assert.equal(0, c.save_counter:read():item())
      local path = assert(c:save(dir .. "/c"))
      local f = assert(io.open(path .. "/data-00000.safetensors", "r+b"))
      f:seek("end", -1)
      f:write "x"
      f:close()
      fails("data_loss", "data-00000.safetensors", c:restore(path))
      fails("data_loss", "data-00000.safetensors", train.load_variable(path, "a"))
    end)

    it("refuses a variable of each worker, and says what to save instead", function()
      local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 2, ps = 1 })
      local coordinator = tm.distribute.ClusterCoordinator(strategy)
      local v = strategy:scope(function() return tm.distribute.PerWorkerVariable(1) end)
      raises("invalid_argument", "read_all", function() return train.Checkpoint { v = v }:write(dir .. "/c") end)
      assert(train.Checkpoint { v = v:read_all() }:write(dir .. "/c"))
      coordinator:close()
    end)

    it("moves between any numbers of shards, slots included", function()
      local function run(ps, shards, path)
        local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 1, ps = ps },
          { variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner { num_shards = shards } })
        local emb, optimizer, metric
        strategy:scope(function()
          emb = tm.layers.Embedding { input_dim = 7, output_dim = 3 }
          optimizer = tm.optimizers.Adam { learning_rate = 0.1 }
          metric = tm.metrics.Mean()
          emb(tm.tensor({ 0 }, "int64"))
        end)
        local coordinator = tm.distribute.ClusterCoordinator(strategy)
        local step = tm.func(function(ids)
          local tape = tm.GradientTape()
          local loss = tm.reduce_sum(tm.square(emb(ids) - 1))
          optimizer:apply_gradients(tape:gradient(loss, emb.trainable_variables), emb.trainable_variables)
          metric:update_state(loss)
          return loss
        end)
        local ids = tm.tensor({ 0, 3, 3, 6 }, "int64")
        local function go(n)
          local last
          for _ = 1, n do last = coordinator:schedule(step, { ids }):fetch() end
          return last
        end
        local checkpoint = train.Checkpoint { emb = emb, optimizer = optimizer, metric = metric }
        if not path then
          go(2)
          path = assert(checkpoint:save(dir .. "/c"))
        else
          assert(checkpoint:restore(path)):assert_consumed()
        end
        local table_now = emb.weights[1]:read():totable()
        local result = { go(2), metric:result():item(), optimizer:get_slot(emb.weights[1], "v"):totable() }
        assert.equal(shards, #emb.weights[1].variables)
        coordinator:close()
        return path, table_now, result
      end
      local path, rows, want = run(2, 2)
      for _, cut in ipairs { { 1, 1 }, { 3, 3 }, { 2, 5 } } do
        local _, got, after = run(cut[1], cut[2], path)
        assert.same(rows, got)
        close.check(after[1], want[1], 1e-6, 1e-6)
        close.check(after[2], want[2], 1e-6, 1e-6)
        close.check(after[3], want[3], 1e-6, 1e-6)
      end
    end)
  end)

  describe("CheckpointManager", function()
    local function numbers(manager)
      local out = {}
      for i, path in ipairs(manager.checkpoints) do out[i] = tonumber(path:match "-(%d+)$") end
      return out
    end

    it("keeps the newest, adopts what is there, and restores the latest", function()
      local v = tm.Variable(0)
      local c = train.Checkpoint { v = v }
      local m = train.CheckpointManager(c, dir, { max_to_keep = 2 })
      assert.is_nil(m.latest_checkpoint)
      for i = 1, 4 do
        v:assign(i)
        assert.equal(("%s/ckpt-%d"):format(dir, i), (assert(m:save())))
      end
      assert.same({ 3, 4 }, numbers(m))
      assert.equal(dir .. "/ckpt-4", m.latest_checkpoint)
      assert.equal(dir .. "/ckpt-4", train.latest_checkpoint(dir .. "/"))
      fails("not_found", "ckpt-2", c:restore(dir .. "/ckpt-2"))

      local w = tm.Variable(0)
      local n = train.CheckpointManager(train.Checkpoint { v = w }, dir, { max_to_keep = 1 })
      assert.same({ 3, 4 }, numbers(n))
      assert.equal(dir .. "/ckpt-4", n:restore_or_initialize())
      assert.equal(4, w:read():item())
      assert.equal(dir .. "/ckpt-5", (assert(n:save())))
      assert.same({ 5 }, numbers(n))
      assert.equal(dir .. "/ckpt-9", (assert(n:save(9))))
    end)

    it("keeps what it could not restore, and numbers on from it", function()
      local m = train.CheckpointManager(train.Checkpoint { v = tm.Variable { 1, 2 } }, dir, { max_to_keep = 1 })
      for _ = 1, 3 do assert(m:save()) end
      local n = train.CheckpointManager(train.Checkpoint { v = tm.Variable { 1, 2, 3 } }, dir, { max_to_keep = 1 })
      local path, err = n:restore_or_initialize()
      assert.is_nil(path)
      assert.equal("invalid_argument", err.code)
      for i = 4, 6 do assert.equal(("%s/ckpt-%d"):format(dir, i), (assert(n:save()))) end
      assert.equal(2, tm.reduce_sum(train.load_variable(dir .. "/ckpt-3", "v"):slice { 2 }):item())
      assert.same({ 6 }, numbers(n))
    end)

    it("works where the directory was moved, with spaces and UTF-8 in its name", function()
      local m = train.CheckpointManager(train.Checkpoint { x = 1 }, dir .. "/а б", { checkpoint_name = "имя 1" })
      assert(m:save())
      os.execute(("mv '%s/а б' '%s/moved'"):format(dir, dir))
      assert.equal(dir .. "/moved/имя 1-1", train.latest_checkpoint(dir .. "/moved"))
    end)

    it("saves when the interval is due", function()
      local step = tm.Variable(tm.tensor(0, "int64"))
      local m = train.CheckpointManager(train.Checkpoint { step = step }, dir,
        { step_counter = step, checkpoint_interval = 3 })
      local saved = {}
      for i = 0, 7 do
        step:assign(tm.tensor(i, "int64"))
        saved[i] = m:save() ~= nil
        if saved[i] then assert.is_nil(m:save { check_interval = false }) end
      end
      assert.same({ [0] = true, false, false, true, false, false, true, false }, saved)
      assert.truthy(m:save { check_interval = false })
    end)

    it("keeps one every n hours for ever", function()
      local now, time = 1e9, os.time
      os.time = function() return now end -- luacheck: ignore 122
      finally(function() os.time = time end) -- luacheck: ignore 122
      local c = train.Checkpoint { x = 1 }
      local m = train.CheckpointManager(c, dir, { max_to_keep = 1, keep_checkpoint_every_n_hours = 2 })
      for _ = 1, 6 do
        now = now + 3600
        assert(m:save())
      end
      assert.same({ 6 }, numbers(m))
      local there = {}
      for i = 1, 6 do there[i] = io.open(("%s/ckpt-%d/checkpoint.json"):format(dir, i)) ~= nil end
      assert.same({ false, true, false, true, false, true }, there)
    end)

    it("keeps all with max_to_keep = false, calls init_fn, and refuses nonsense", function()
      local called = 0
      local c = train.Checkpoint { x = 1 }
      local m = train.CheckpointManager(c, dir, { max_to_keep = false, init_fn = function() called = called + 1 end })
      assert.is_nil(m:restore_or_initialize())
      assert.equal(1, called)
      for _ = 1, 7 do assert(m:save()) end
      assert.equal(7, #m.checkpoints)
      raises("invalid_argument", "max_to_keep", train.CheckpointManager, c, dir, { max_to_keep = 0 })
      raises("invalid_argument", "step_counter", train.CheckpointManager, c, dir, { checkpoint_interval = 2 })
      raises("invalid_argument", "did you mean", train.CheckpointManager, c, dir, { max_to_kep = 2 })
      raises("invalid_argument", "Checkpoint", train.CheckpointManager, {}, dir)
    end)

    it("leaves the list alone when a save fails", function()
      local m = train.CheckpointManager(train.Checkpoint { v = tm.Variable(1) }, dir)
      assert(m:save())
      os.execute(("rm -rf '%s/ckpt-2' && touch '%s/ckpt-2'"):format(dir, dir))
      local path, e = m:save()
      assert.is_nil(path)
      assert.truthy(tostring(e):find("ckpt-2", 1, true))
      assert.equal(dir .. "/ckpt-1", train.latest_checkpoint(dir))
      os.remove(dir .. "/ckpt-2")
      assert.equal(dir .. "/ckpt-2", (assert(m:save())))
    end)
  end)

  describe("checkpoints_iterator", function()
    it("gives the latest, or each in turn, and ends at the timeout", function()
      local m = train.CheckpointManager(train.Checkpoint { x = 1 }, dir)
      local got, asked = {}, 0
      for path in train.checkpoints_iterator(dir, { timeout = 0.05 }) do got[#got + 1] = path end
      assert.same({}, got)
      m:save()
      m:save()
      local function more()
        asked = asked + 1
        if asked == 1 then m:save() end
        return asked > 1
      end
      for path in train.checkpoints_iterator(dir, { timeout = 0.05, timeout_fn = more }) do got[#got + 1] = path end
      assert.same({ dir .. "/ckpt-2", dir .. "/ckpt-3" }, got)
      got = {}
      for path in train.checkpoints_iterator(dir, { timeout = 0.05, every = true }) do got[#got + 1] = path end
      assert.same({ dir .. "/ckpt-1", dir .. "/ckpt-2", dir .. "/ckpt-3" }, got)
    end)

    it("gives nil for a directory without a readable list", function()
      assert.is_nil(train.latest_checkpoint(dir))
      os.execute(("mkdir -p '%s' && echo junk > '%s/checkpoint'"):format(dir, dir))
      assert.is_nil(train.latest_checkpoint(dir))
    end)
  end)

  describe("tidemill inspect", function()
    local function inspect(args)
      local p = io.popen((os.getenv "TM_BUILD" or "build") .. "/tidemill inspect " .. args .. " 2>&1; echo status $?")
      local out = p:read "*a"
      p:close()
      return out, tonumber(out:match "status (%d+)%s*$")
    end

    it("lists what a checkpoint holds, and says whether it is whole", function()
      local path = assert(train.Checkpoint { v = tm.Variable { 1, 2.5 }, text = "a\n", n = 3 }:save(dir .. "/c"))
      for _, where in ipairs { path, dir } do
        local out, status = inspect(("'%s'"):format(where))
        assert.equal(0, status, out)
        assert.truthy(out:find(path .. ": 2 tensors, 2 values, 1 files of", 1, true), out)
        assert.truthy(out:find("checksums are right", 1, true), out)
        assert.truthy(out:find("tensor v float32 (2) 8 B in data-00000.safetensors\n", 1, true), out)
        assert.truthy(out:find('value n 3\nvalue text "a\\x0a"\n', 1, true), out)
      end
      local out = inspect(("'%s' v n"):format(path))
      assert.truthy(out:find("v = %[1.*2%.5"), out)
      assert.truthy(out:find("n = 3", 1, true), out)
      local f = assert(io.open(path .. "/data-00000.safetensors", "r+b"))
      f:seek("end", -1)
      f:write "x"
      f:close()
      local text, status = inspect(("'%s'"):format(path))
      assert.equal(1, status)
      assert.truthy(text:find("data-00000.safetensors\" is damaged", 1, true), text)
      assert.equal(0, select(2, inspect(("--quick '%s'"):format(path))))
      assert.equal(1, select(2, inspect(("'%s/none'"):format(dir))))
      assert.equal(2, select(2, inspect "--what"))
    end)
  end)
end)
