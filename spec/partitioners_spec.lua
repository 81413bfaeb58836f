--- Partitioners against the vectors of TensorFlow's sharded_variable tests.

local partitioners = require "tidemill.distribute.partitioners"
local Fixed, Min, Max =
  partitioners.FixedShardsPartitioner, partitioners.MinSizePartitioner, partitioners.MaxSizePartitioner

local K = 1024

local function min(bytes, max, string_bytes)
  return Min { min_shard_bytes = bytes, max_shards = max, bytes_per_string = string_bytes }
end

local function max(bytes, most, string_bytes)
  return Max { max_shard_bytes = bytes, max_shards = most, bytes_per_string = string_bytes }
end

local function message_of(fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.equal("invalid_argument", e.code)
  return e.message
end

describe("a partitioner", function()
  local vectors = {
    { "fixed 2 of 10 rows", Fixed { num_shards = 2 }, { 10, 3 }, 2 },
    { "fixed 4 of 3 rows", Fixed { num_shards = 4 }, { 3 }, 3 },
    { "fixed 2 of 1 row", Fixed { num_shards = 2 }, { 1, 5 }, 1 },
    { "min 256 KiB, max 1", min(256 * K, 1), { 1024, 1024 }, 1 },
    { "min 256 KiB, max 8", min(256 * K, 8), { 1024, 1024 }, 8 },
    { "min 256 KiB, max 16", min(256 * K, 16), { 1024, 1024 }, 16 },
    { "min 256 KiB, max 100", min(256 * K, 100), { 1024, 1024 }, 16 },
    { "min: exactly one piece", min(256 * K, 2), { 65536 }, 1 },
    { "min: one element more", min(256 * K, 2), { 65537 }, 2 },
    { "min 2 KiB", min(2 * K, 100), { 2048 }, 4 },
    { "min 256 KiB of 8 MiB", min(256 * K, 100), { 2048, 1024 }, 32 },
    { "min 128 KiB of 8 MiB", min(128 * K, 100), { 2048, 1024 }, 64 },
    { "min 512 KiB of 8 MiB", min(512 * K, 100), { 2048, 1024 }, 16 },
    { "min limited by 16 rows", min(256 * K, 100), { 16, 128, 1024 }, 16 },
    { "min limited by 4 rows", min(256 * K, 100), { 4, 512, 1024 }, 4 },
    { "min 4 bytes, max 2", min(4, 2), { 6, 1 }, 2 },
    { "min 4 bytes, max 10", min(4, 10), { 6, 1 }, 6 },
    { "min 72, max 2, kernel", min(72, 2), { 6, 6 }, 2 },
    { "min 72, max 2, bias", min(72, 2), { 6 }, 1 },
    { "min 48, max 3, kernel", min(48, 3), { 6, 6 }, 3 },
    { "min 48, max 3, bias", min(48, 3), { 6 }, 1 },
    { "min without rows", min(4, 2), { 0, 5 }, 1 },
    { "min without columns", min(4, 2), { 5, 0 }, 1 },
    { "max 4", max(4), { 6, 1 }, 6 },
    { "max 4, at most 2", max(4, 2), { 6, 1 }, 2 },
    { "max 1024", max(1024), { 6, 1 }, 1 },
    { "max 131072", max(131072), { 4, 8, 16, 32 }, 1 },
    { "max 64 MiB - 1", max(64 * K * K - 1), { 1000000, 64 }, 4 },
    { "max 12", max(12), { 10 }, 4 },
    { "max 16", max(16), { 10 }, 3 },
    { "max 64 KiB of rows of 400 bytes", max(64 * K), { 1000, 100 }, 7 },
    { "max without rows", max(4), { 0, 5 }, 1 },
  }
  for _, v in ipairs(vectors) do
    it(v[1], function()
      local got = v[2](v[3], "float32")
      assert.equal(v[4], got[1])
      assert.equal(#v[3], #got)
      for i = 2, #got do assert.equal(1, got[i]) end
    end)
  end

  it("cuts another axis", function()
    assert.same({ 1, 3, 1, 1 }, min(256 * K, 100)({ 64, 1024, 1, 3 }, "float32", 2))
    assert.same({ 1, 1, 1, 3 }, min(256 * K, 100)({ 64, 1024, 1, 3 }, "float32", -1))
    assert.same({ 1, 1, 2, 1 }, max(32768)({ 4, 8, 16, 32 }, "float32", 3))
    assert.same({ 1, 1, 1, 32 }, max(2048)({ 4, 8, 16, 32 }, "float32", 4))
    assert.same({ 1, 1, 1, 2 }, max(1024, 2)({ 4, 8, 16, 32 }, "float32", 4))
  end)

  it("counts strings by bytes_per_string", function()
    assert.same({ 2 }, min(256 * K, 10, 16)({ 20000 }, "string"))
    assert.same({ 1, 1, 1, 4 }, max(32768, nil, 8)({ 4, 8, 16, 32 }, "string", 4))
  end)

  it("refuses numbers below one and names the option", function()
    assert.matches("min_shard_bytes", message_of(Min, { min_shard_bytes = 0 }))
    assert.matches("max_shards", message_of(Min, { max_shards = 0 }))
    assert.matches("bytes_per_string", message_of(Min, { bytes_per_string = 0 }))
    assert.matches("max_shard_bytes", message_of(Max, { max_shard_bytes = 0 }))
    assert.matches("max_shards", message_of(Max, { max_shard_bytes = 1, max_shards = 0 }))
    assert.matches("num_shards", message_of(Fixed, {}))
  end)

  it("suggests the nearest option", function()
    assert.matches("max_shards", message_of(Min, { max_shard = 2 }))
  end)

  it("refuses an axis that is not there, and position 0", function()
    assert.matches("axis 3", message_of(Fixed { num_shards = 2 }, { 4, 4 }, "float32", 3))
    assert.matches("count from 1", message_of(Fixed { num_shards = 2 }, { 4, 4 }, "float32", 0))
  end)
end)
