-- Weights of a model on disk: what save_weights wrote, checkpoints, safetensors files.
local tm = require "tidemill"

local expect = dofile "spec/tools/expect.lua"
local raises, fails = expect.raises, expect.fails

local function model_of(units, inputs)
  local x = tm.Input { shape = { inputs or 3 } }
  local h = tm.layers.Dense { units = units or 4, activation = "tanh" }(x)
  return tm.Model { inputs = x, outputs = tm.layers.Dense { units = 2 }(h * 2) }
end

local X = tm.tensor { { 1, 2, 3 }, { 4, 5, 6 } }

local function same(a, b) return tm.allclose(a(X), b(X), 0, 0) end

-- 1 to 4, and 0.5 and 1.5, as little-endian float32.
local ONE_TO_FOUR = "\0\0\128\63\0\0\0\64\0\0\64\64\0\0\128\64"
local HALVES = "\0\0\0\63\0\0\192\63"

--- A safetensors file by hand: { { name, type, shape, bytes } }.
local function write_safetensors(path, list, header)
  local parts, data, at = {}, {}, 0
  for i, t in ipairs(list) do
    parts[i] = ('"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}'):format(t[1], t[2],
      table.concat(t[3], ","), at, at + #t[4])
    data[i], at = t[4], at + #t[4]
  end
  local head = header or "{" .. table.concat(parts, ",") .. "}"
  local size, bytes = #head, {}
  for i = 1, 8 do bytes[i], size = string.char(size % 256), math.floor(size / 256) end
  local f = assert(io.open(path, "wb"))
  f:write(table.concat(bytes), head, table.concat(data))
  f:close()
end

describe("weights of a model", function()
  local dir

  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
  end)
  after_each(function() os.execute("rm -rf '" .. dir .. "'") end)

  it("come back from where they were saved, without optimizer and metrics", function()
    local a, b = model_of(), model_of()
    assert.is_false(same(a, b))
    assert.equal(dir .. "/w", a:save_weights(dir .. "/w"))
    assert.truthy(b:load_weights(dir .. "/w"))
    assert.is_true(same(a, b))
    for _, t in ipairs(assert(tm.train.list_variables(dir .. "/w"))) do assert.truthy(t.name:find "^model/") end
    assert.equal(4, #tm.train.list_variables(dir .. "/w"))
  end)

  it("come from a checkpoint of model and optimizer, and from a directory of them", function()
    local a, b, c = model_of(), model_of(), model_of()
    local manager = tm.train.CheckpointManager(tm.train.Checkpoint { model = a, optimizer = tm.optimizers.Adam() }, dir)
    assert(manager:save())
    assert.truthy(b:load_weights(dir .. "/ckpt-1"))
    assert.truthy(c:load_weights(dir))
    assert.is_true(same(a, b) and same(a, c))
  end)

  it("move between shards, ps and this process", function()
    local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.local_cluster { workers = 1, ps = 3 },
      { variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner { num_shards = 3 } })
    local a = strategy:scope(model_of)
    assert(a:save_weights(dir .. "/w"))
    local b = model_of()
    assert.truthy(b:load_weights(dir .. "/w"))
    assert.is_true(same(a, b))
    b.weights[1]:assign(b.weights[1]:read() + 1)
    assert(b:save_weights(dir .. "/w"))
    assert.truthy(a:load_weights(dir .. "/w"))
    assert.is_true(same(a, b))
    strategy:close()
  end)

  it("wait for layers that are built later", function()
    local function late() return tm.Sequential { tm.layers.Dense { units = 2 } } end
    local a, b = late(), late()
    raises("failed_precondition", "has no weights yet", a.save_weights, a, dir .. "/w")
    a(X)
    assert(a:save_weights(dir .. "/w"))
    assert.truthy(b:load_weights(dir .. "/w"))
    assert.is_true(same(a, b))
  end)

  it("that are missing or of another shape are an error before anything is assigned", function()
    local a, b = model_of(4), model_of(5)
    assert(a:save_weights(dir .. "/w"))
    local before = b(X)
    fails("invalid_argument", "is float32 of shape (3, 4) in", b:load_weights(dir .. "/w"))
    assert.is_true(tm.allclose(before, b(X), 0, 0))
    local x = tm.Input { shape = { 3 } }
    local deeper = tm.layers.Dense { units = 2 }(tm.layers.Dense { units = 2 }(tm.layers.Dense { units = 4 }(x)))
    local c = tm.Model { inputs = x, outputs = deeper }
    before = c(X)
    fails("not_found", 'lacks "model/layers/3/kernel", "model/layers/3/bias"', c:load_weights(dir .. "/w"))
    assert.is_true(tm.allclose(before, c(X), 0, 0))
    assert.truthy(b:load_weights(dir .. "/w", { skip_mismatch = true }))
    assert.is_true(tm.allclose(a.weights[4], b.weights[4], 0, 0))
    assert.same({ 3, 5 }, b.weights[1].shape)
  end)

  it("bring the vocabulary that a layer had learned", function()
    local function with(words)
      local lookup = tm.layers.StringLookup { vocabulary = words }
      local x = tm.Input { shape = {}, dtype = "string" }
      return tm.Model { inputs = x, outputs = tm.layers.Embedding { input_dim = 3, output_dim = 2 }(lookup(x)) }, lookup
    end
    local a = with { "x", "y" }
    local b, lookup = with { "y", "z" }
    assert(a:save_weights(dir .. "/w"))
    assert.truthy(b:load_weights(dir .. "/w"))
    assert.same({ "[UNK]", "x", "y" }, lookup:get_vocabulary())
    assert.is_true(tm.allclose(a(tm.tensor { "y" }), b(tm.tensor { "y" }), 0, 0))
  end)

  it("are read from a safetensors file by place or by the variable's name", function()
    os.execute("mkdir -p " .. dir)
    local m = tm.Sequential { tm.Input { shape = { 2 } }, tm.layers.Dense { units = 2, name = "head" } }
    write_safetensors(dir .. "/a.safetensors", {
      { "head/kernel", "F32", { 2, 2 }, ONE_TO_FOUR }, { "head/bias", "F32", { 2 }, HALVES },
      { "more", "F16", { 1 }, "ab" } })
    assert.is_true(m:load_weights(dir .. "/a.safetensors"))
    assert.same({ { 1, 2 }, { 3, 4 } }, m.weights[1]:read():totable())
    write_safetensors(dir .. "/b.safetensors", {
      { "layers/1/bias", "F32", { 2 }, HALVES }, { "layers/1/kernel", "F32", { 2, 2 }, ONE_TO_FOUR } })
    assert.is_true(m:load_weights(dir .. "/b.safetensors"))
    assert.same({ 0.5, 1.5 }, m.weights[2]:read():totable())
  end)

  it("of a malformed file are an error and change nothing", function()
    os.execute("mkdir -p " .. dir)
    local m = tm.Sequential { tm.Input { shape = { 2 } }, tm.layers.Dense { units = 2, name = "head" } }
    local before = m.weights[1]:read()
    local path = dir .. "/a.safetensors"
    local kernel = { "head/kernel", "F32", { 2, 2 }, ONE_TO_FOUR }
    write_safetensors(path, { kernel })
    fails("not_found", "lacks", m:load_weights(path))
    write_safetensors(path, { kernel, { "head/bias", "F64", { 1 }, ("x"):rep(8) } })
    fails("invalid_argument", "float64 of shape", m:load_weights(path))
    write_safetensors(path, { kernel, { "head/bias", "F32", { 4611686018427387904 }, "abcd" } })
    fails("data_loss", "", m:load_weights(path))
    write_safetensors(path, {}, ("["):rep(100000))
    fails("data_loss", "", m:load_weights(path))
    write_safetensors(path, {}, '{"head/kernel":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}')
    fails("data_loss", "", m:load_weights(path))
    fails("not_found", "", m:load_weights(dir .. "/none.safetensors"))
    fails("not_found", "", m:load_weights(dir .. "/none"))
    fails("not_found", "", m:load_weights(dir))
    raises("invalid_argument", "the path of a directory", m.load_weights, m, "")
    raises("invalid_argument", "writes a directory", m.save_weights, m, path)
    assert.is_true(tm.allclose(before, m.weights[1], 0, 0))
  end)
end)
