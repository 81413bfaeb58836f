-- Print the lines of each layer and of the rest.  Usage: lua5.4 spec/tools/size.lua
-- Fails when a C file is longer than 800 lines.
local LONGEST = 800

local function files(pattern)
  local list = {}
  local pipe = assert(io.popen("ls " .. pattern .. " 2>/dev/null"))
  for name in pipe:lines() do list[#list + 1] = name end
  pipe:close()
  return list
end

local function lines(path)
  local n = 0
  for _ in io.lines(path) do n = n + 1 end
  return n
end

local too_long, total = {}, 0

local function report(name, pattern)
  local sum, list = 0, files(pattern)
  for _, path in ipairs(list) do
    local n = lines(path)
    sum = sum + n
    if n > LONGEST and path:find "^core/" then
      too_long[#too_long + 1] = ("%s: %d lines, at most %d"):format(path, n, LONGEST)
    end
  end
  if #list > 0 then print(("%-18s %4d files %6d lines"):format(name, #list, sum)) end
  total = total + sum
end

for line in io.lines "core/LAYERS" do
  local layer = line:match "^(%w+):"
  if layer then report("core/" .. layer, ("core/%s/*.c core/%s/*.h core/%s/*.inc"):format(layer, layer, layer)) end
end
report("lua", "$(find lua -name '*.lua' 2>/dev/null) /dev/null/none")
report("examples", "examples/*.lua")
report("spec/core", "spec/core/*.c spec/core/*.h spec/fuzz/*.c")
report("spec", "spec/*.lua spec/tools/*")
print(("%-18s %17d lines"):format("all", total))
for _, text in ipairs(too_long) do print(text) end
os.exit(#too_long == 0)
