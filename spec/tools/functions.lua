-- Fail on C functions above 60 lines or a complexity of 15, measured by pmccabe.
-- A function with "/* long: why */" on or within the two lines before its first, or
-- within it, may be longer; core/kernel may be what it must.
-- Usage: lua5.4 spec/tools/functions.lua
local LINES, COMPLEXITY = 60, 15

local texts = {}
local function text_of(path)
  if not texts[path] then
    local t = {}
    for line in io.lines(path) do t[#t + 1] = line end
    texts[path] = t
  end
  return texts[path]
end

local function excused(path, first, n)
  local t = text_of(path)
  for i = math.max(1, first - 3), math.min(#t, first + n) do
    if t[i]:find("/* long: ", 1, true) then return true end
  end
  return false
end

local bad = 0
local pipe = assert(io.popen "ls core/*/*.c 2>/dev/null | grep -v ^core/kernel/ | xargs -r pmccabe 2>/dev/null")
for line in pipe:lines() do
  -- modified complexity, complexity, statements, first line, lines, path(line): name
  local modified, first, n, path, name =
    line:match "^(%d+)%s+%d+%s+%d+%s+(%d+)%s+(%d+)%s+([^%(]+)%(%d+%):%s*(.+)"
  modified, first, n = tonumber(modified), tonumber(first), tonumber(n)
  if n and (n > LINES or modified > COMPLEXITY) and not excused(path, first, n) then
    print(("%s:%d: %s: %d lines, complexity %d"):format(path, first, name, n, modified))
    bad = bad + 1
  end
end
pipe:close()
os.exit(bad == 0)
