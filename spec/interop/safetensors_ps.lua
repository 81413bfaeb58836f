-- Checkpoints of a cluster for safetensors_check.py: a whole one and one with only the
-- rows that changed, each of files that ps wrote.
local tm = require "tidemill"

local dir = arg[#arg]
local s = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 1, ps = 2 }, {
  variable_partitioner = tm.distribute.partitioners.FixedShardsPartitioner { num_shards = 3 } })
local t = s:scope(function()
  return { table = tm.Variable(tm.reshape(tm.cast(tm.range(400), "float32"), { 100, 4 })),
    dense = tm.Variable(tm.tensor { 1, 2, 3, 4 }), count = tm.Variable(tm.tensor(7, "int64")),
    flags = tm.Variable(tm.tensor { true, false, true }, { trainable = false }) }
end)
local manager = tm.train.CheckpointManager(tm.train.Checkpoint(t), dir .. "/ps", { incremental = true })
local ids = tm.tensor({ 0, 33, 34, 99 }, "int64")
t.table:scatter_add(tm.range(0, 100, 1, "int64"), tm.zeros { 100, 4 }) -- by rows from here on
assert(manager:save())
t.table:scatter_update(ids, tm.ones { 4, 4 } * -1)
t.dense:assign_add(tm.ones { 4 })
assert(manager:save())
