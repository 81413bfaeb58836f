-- Logs that spec/interop/tensorboard_check.py reads.  Argument: directory.
local tm = require "tidemill"
local dir = arg[1]

local w = tm.summary.create_file_writer(dir .. "/run")
for step = 0, 99 do w:scalar("train/loss", 1 / (1 + step), step) end
w:scalar("odd", 0 / 0, 0)
w:scalar("odd", math.huge, 1)
w:scalar("odd", -math.huge, 2)
w:scalar("odd", 0, 2 ^ 40)
local x = tm.range(0, 1000)
w:histogram("weights", x, 3)
w:histogram("weights", tm.fill({ 10 }, 7), 4)
w:histogram("weights", tm.tensor { 0 / 0, 1, 2, math.huge }, 5, { buckets = 2 })
w:histogram("weights", tm.zeros { 0 }, 6)
w:histogram("wide", tm.tensor({ -1.7e308, 1.7e308, 0 }, "float64"), 1, { buckets = 3 })
local pixels = {}
for y = 1, 4 do
  pixels[y] = {}
  for z = 1, 5 do pixels[y][z] = { 10 * y, 20 * z, y * z } end
end
w:image("picture", tm.tensor(pixels, "uint8"), 2)
w:image("grey", tm.tensor { { 0, 0.5 }, { 1, 2 }, { -1, 0 / 0 } }, 2)
w:image("many", tm.zeros { 7, 8, 9, 4 }, 2, { max_outputs = 5 })
w:text("notes", "**bold** имя", 1)
w:text("table", tm.tensor { { "a", "b" }, { "c", "" } }, 1)
w:scalar("имя", 2.5, 1)
-- Others of the same directory.
local more = {}
for i = 1, 5 do more[i] = tm.summary.create_file_writer(dir .. "/many", { filename_suffix = ".v2" }) end
for step = 1, 20 do
  for i = 1, 5 do more[i]:scalar("writer" .. i, step * i, step) end
end
for i = 1, 5 do more[i]:close() end
local start = tm.time()
local big = tm.summary.create_file_writer(dir .. "/big")
for step = 1, 100000 do big:scalar("big", step, step) end
big:close()
print(("100000 scalars in %.3f s"):format(tm.time() - start))
w:flush()
-- The process ends in the middle of a record: the rest of this one never comes.
w:scalar("train/loss", 5, 100)
w:close()
local f = assert(io.open(w.path, "rb"))
local all = f:read "a"
f:close()
f = assert(io.open(w.path, "wb"))
f:write(all:sub(1, -6))
f:close()
