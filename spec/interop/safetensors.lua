-- Write a checkpoint of each dtype, for safetensors_check.py.
local tm = require "tidemill"

local dir = arg[#arg]
local t = { text = "value" }
for i, dtype in ipairs { "float32", "float64", "int32", "int64", "uint8" } do
  t[dtype] = tm.Variable(tm.reshape(tm.cast(tm.range(12), dtype), { 3, 4 }) + tm.cast(tm.tensor(i), dtype))
end
t.bool = tm.Variable(tm.tensor { true, false, true })
t.scalar = tm.Variable(0.5)
t.empty = tm.Variable(tm.zeros { 0, 3 })
t["имя / с пробелом"] = tm.Variable { 1, 2 }
assert(tm.train.Checkpoint(t):write(dir .. "/checkpoint"))
