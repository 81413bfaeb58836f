-- Preprocessing layers against tf-keras's numbers (spec/fixtures/keras_preprocessing.py).
local tm = require "tidemill"
local close = dofile "spec/close.lua"
local keras = dofile "spec/fixtures/keras_preprocessing.lua"

local L = tm.layers

local function words_dataset() return tm.data.from_tensor_slices(keras.words) end

describe("StringLookup", function()
  it("learns words by count", function()
    local l = L.StringLookup()
    l:adapt(tm.tensor(keras.words))
    assert.same(keras.string_vocabulary, l:get_vocabulary())
    assert.same(keras.string_ids, l { { "cat", "fish" }, { "ant", "dog" } }:totable())
  end)

  it("learns from a dataset, batched or not", function()
    for _, ds in ipairs { words_dataset(), words_dataset():batch(3) } do
      local l = L.StringLookup()
      l:adapt(ds)
      assert.same(keras.string_vocabulary, l:get_vocabulary())
    end
  end)

  it("keeps to max_tokens", function()
    local l = L.StringLookup { max_tokens = 3 }
    l:adapt(tm.tensor(keras.words))
    assert.same(keras.string_small_vocabulary, l:get_vocabulary())
  end)

  it("puts the mask first", function()
    local l = L.StringLookup { vocabulary = { "a", "b" }, mask_token = "" }
    assert.same(keras.masked_vocabulary, l:get_vocabulary())
    assert.same(keras.masked_ids, l { "", "a", "x", "b" }:totable())
  end)

  it("takes a vocabulary that has its special tokens", function()
    local l = L.StringLookup { vocabulary = { "[UNK]", "a", "b" } }
    assert.same({ "[UNK]", "a", "b" }, l:get_vocabulary())
    assert.same({ "a", "b" }, l:get_vocabulary { include_special_tokens = false })
  end)

  it("raises for unknown words when there is no id for them", function()
    local l = L.StringLookup { vocabulary = { "a", "b" }, num_oov_indices = 0 }
    assert.same(keras.strict_ids, l { "b", "a" }:totable())
    local ok, e = pcall(function() return l { "c" } end)
    assert.is_false(ok)
    assert.truthy(tostring(e):find("c", 1, true))
  end)

  it("spreads unknown words over several ids", function()
    local l = L.StringLookup { vocabulary = { "a" }, num_oov_indices = 3 }
    local ids = l { "x", "y", "z", "a" }:totable()
    for i = 1, 3 do assert(ids[i] >= 0 and ids[i] < 3) end
    assert.equal(3, ids[4])
    assert.same({ "[UNK]", "[UNK]", "[UNK]", "a" }, l:get_vocabulary())
  end)

  it("encodes", function()
    local function of(mode) return L.StringLookup { vocabulary = { "a", "b" }, output_mode = mode } end
    assert.same(keras.string_one_hot, of "one_hot" "b":totable())
    local x = { { "b", "b", "x" }, { "a", "b", "a" } }
    assert.same(keras.string_multi_hot, of "multi_hot"(x):totable())
    assert.same(keras.string_count, of "count"(x):totable())
  end)

  it("reads a vocabulary file", function()
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write("one\ntwo\r\nthree")
    f:close()
    local l = L.StringLookup { vocabulary = path }
    os.remove(path)
    assert.same({ "[UNK]", "one", "two", "three" }, l:get_vocabulary())
  end)

  it("says what is wrong with a vocabulary", function()
    for message, v in pairs { ["twice"] = { "a", "a" }, ["no string"] = { 1 }, ["no/such/file"] = "no/such/file" } do
      local ok, e = pcall(L.StringLookup, { vocabulary = v })
      assert.is_false(ok)
      assert.truthy(tostring(e):find(message, 1, true))
    end
    local ok, e = pcall(function() return L.StringLookup() { "a" } end)
    assert.is_false(ok)
    assert.equal("failed_precondition", e.code)
  end)

  it("works in map of a dataset", function()
    local l = L.StringLookup { vocabulary = { "cat", "dog", "bird", "ant" } }
    local out = {}
    for x in words_dataset():map(function(w) return l(w) end):each() do out[#out + 1] = x:totable() end
    assert.same({ { 1, 2 }, { 3, 1 }, { 1, 2 }, { 4, 3 } }, out)
  end)
end)

describe("IntegerLookup", function()
  it("learns and looks up", function()
    local l = L.IntegerLookup()
    l:adapt(tm.tensor(keras.ints, "int64"))
    assert.same(keras.int_vocabulary, l:get_vocabulary())
    assert.same(keras.int_ids, l { { 3, 4 }, { 9, 7 } }:totable())
  end)
end)

describe("Hashing", function()
  it("gives a word the same id every time", function()
    local x = tm.tensor { { "cat", "dog" }, { "dog", "a longer word than the others" } }
    local ids = L.Hashing { num_bins = 1000 }(x):totable()
    assert.same(ids, L.Hashing { num_bins = 1000 }(x):totable())
    assert.equal(ids[1][2], ids[2][1])
    assert(ids[1][1] ~= ids[1][2])
    assert(ids[1][1] >= 0 and ids[1][1] < 1000)
  end)

  it("hashes integers", function()
    local ids = L.Hashing { num_bins = 10 }(tm.tensor({ 5, -3, 5 }, "int64")):totable()
    assert.equal(ids[1], ids[3])
  end)

  it("keeps 0 for the mask", function()
    local ids = L.Hashing { num_bins = 3, mask_value = "" } { "", "cat", "dog", "" }:totable()
    assert.equal(0, ids[1])
    assert.equal(0, ids[4])
    assert(ids[2] > 0 and ids[3] > 0)
  end)
end)

describe("Normalization", function()
  local x = tm.tensor(keras.x)

  it("learns mean and variance of each column", function()
    local l = L.Normalization()
    l:adapt(x)
    close.check(l(x):totable(), keras.normalized, 1e-4, 1e-5)
  end)

  it("learns the same from batches of a dataset", function()
    local l = L.Normalization()
    l:adapt(tm.data.from_tensor_slices(keras.x):batch(4))
    close.check(l(x):totable(), keras.normalized, 1e-4, 1e-5)
  end)

  it("takes one mean of everything", function()
    local l = L.Normalization { axis = false }
    l:adapt(x)
    close.check(l(x):totable(), keras.normalized_all, 1e-4, 1e-5)
  end)

  it("takes mean and variance as given, and back again", function()
    close.check(L.Normalization { mean = 3, variance = 4 }(x):totable(), keras.normalized_given)
    close.check(L.Normalization { mean = 3, variance = 4, invert = true }(x):totable(), keras.normalized_inverse)
  end)
end)

describe("Discretization", function()
  it("counts the boundaries below", function()
    local l = L.Discretization { bin_boundaries = { -1, 0, 2.5 } }
    assert.same(keras.bins, l(keras.values):totable())
  end)

  it("learns boundaries", function()
    local l = L.Discretization { num_bins = 4 }
    l:adapt(tm.range(1, 101, 1, "float32"))
    close.check(l.bin_boundaries, keras.adapted_boundaries, 0.02)
  end)
end)

describe("CategoryEncoding", function()
  local function of(mode) return L.CategoryEncoding { num_tokens = 4, output_mode = mode } end

  it("encodes as Keras does", function()
    assert.same(keras.encoded_multi_hot, of "multi_hot"(keras.ids):totable())
    assert.same(keras.encoded_count, of "count"(keras.ids):totable())
    assert.same(keras.encoded_one_hot, of "one_hot" { 2, 0, 3 }:totable())
  end)

  it("counts with weights", function()
    local out = of "count" { tm.tensor(keras.ids, "int64"), tm.tensor(keras.count_weights) }
    assert.same(keras.encoded_weighted, out:totable())
  end)

  it("refuses ids that are not there", function()
    local ok, e = pcall(function() return of "count" { { 4 } } end)
    assert.is_false(ok)
    assert.truthy(tostring(e):find("0 to 3", 1, true))
  end)
end)
