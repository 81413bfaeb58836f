-- Fail where the core calls what it must not: memory behind base/mem's back, output,
-- the end of the process, unbounded string functions.  A line that says
-- "/* allowed: why */" is left alone.
-- Usage: lua5.4 spec/tools/calls.lua
local never = {
  malloc = "tm_malloc", calloc = "tm_calloc", realloc = "tm_realloc", free = "tm_free",
  strdup = "tm_strdup", strndup = "tm_strndup", posix_memalign = "tm_malloc_aligned",
  aligned_alloc = "tm_malloc_aligned", alloca = "tm_malloc",
  sprintf = "snprintf", vsprintf = "vsnprintf", strcpy = "tm_buf or snprintf",
  strcat = "tm_buf", strtok = "a pointer of your own", gets = "fgets",
  rand = "tm_rng", srand = "tm_rng", setlocale = "nothing: the host's",
}
-- Only the program may do these.
local host_only = {
  exit = "a status", _exit = "a status", abort = "a status", printf = "tm_log",
  puts = "tm_log", perror = "tm_log", signal = "the host", sigaction = "the host",
}

--- Take comments and strings out, keeping lines.
local function strip(text)
  local function blank(s) return (s:gsub("[^\n]", " ")) end
  text = text:gsub("\\.", "  ")
  text = text:gsub("/%*.-%*/", blank)
  text = text:gsub('"[^"\n]*"', blank):gsub("'[^'\n]*'", blank)
  return text
end

local function lines(text)
  local t = {}
  for line in (text .. "\n"):gmatch "(.-)\n" do t[#t + 1] = line end
  return t
end

local bad = 0
local pipe = assert(io.popen "ls core/*/*.c core/*/*.inc 2>/dev/null")
for path in pipe:lines() do
  local file = assert(io.open(path))
  local text = file:read "a"
  file:close()
  local layer = path:match "^core/(%w+)/"
  local plain = lines(text)
  for n, line in ipairs(lines(strip(text))) do
    for before, name in line:gmatch "([%w_%.>]?)%f[%w_]([%a_][%w_]*)%s*%f[(]%(" do
      local remedy = never[name] or (layer ~= "host" and host_only[name])
      local member = before == "." or before == ">"
      if remedy and not member and path ~= "core/base/mem.c"
        and not plain[n]:find("/* allowed:", 1, true) then
        print(("%s:%d: %s: use %s"):format(path, n, name, remedy))
        bad = bad + 1
      end
    end
    if plain[n]:find "%f[%w]TODO%f[%W]" or plain[n]:find "%f[%w]FIXME%f[%W]" then
      print(("%s:%d: unfinished: %s"):format(path, n, plain[n]))
      bad = bad + 1
    end
  end
end
pipe:close()
os.exit(bad == 0)
