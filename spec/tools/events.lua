-- Reads event files: what tests look at, in plain Lua.
local M = {}

--- The bytes of a file.
function M.slurp(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read "*a"
  f:close()
  return s
end

local function le(s, at, n)
  local x = 0
  for i = n, 1, -1 do x = x * 256 + s:byte(at + i - 1) end
  return x
end

local function float32(s)
  local bits = le(s, 1, 4)
  local sign = bits >= 2 ^ 31 and -1 or 1
  bits = bits % 2 ^ 31
  local exponent, fraction = math.floor(bits / 2 ^ 23), bits % 2 ^ 23
  if exponent == 255 then return fraction == 0 and sign * math.huge or 0 / 0 end
  if exponent == 0 then return sign * fraction * 2 ^ -149 end
  return sign * (1 + fraction / 2 ^ 23) * 2 ^ (exponent - 127)
end

local function varint(s, at)
  local x, scale = 0, 1
  while true do
    local b = s:byte(at)
    at = at + 1
    x = x + (b % 128) * scale
    if b < 128 then return x, at end
    scale = scale * 128
  end
end

--- The fields of a message: { { number, value }, ... }.
function M.fields(s)
  local at, list = 1, {}
  while at <= #s do
    local key, value
    key, at = varint(s, at)
    local kind = key % 8
    if kind == 0 then
      value, at = varint(s, at)
    elseif kind == 2 then
      local n
      n, at = varint(s, at)
      value, at = s:sub(at, at + n - 1), at + n
    else
      local n = kind == 1 and 8 or 4
      value, at = s:sub(at, at + n - 1), at + n
    end
    list[#list + 1] = { math.floor(key / 8), value }
  end
  return list
end

--- The first field of a number, nil where there is none.
function M.field(s, number)
  for _, f in ipairs(M.fields(s)) do
    if f[1] == number then return f[2] end
  end
end

local function value_of(e, s)
  local out = { step = e.step, tag = M.field(s, 1) }
  local simple, meta = M.field(s, 2), M.field(s, 9)
  if simple then out.kind, out.value = "scalar", float32(simple) end
  if M.field(s, 5) then out.kind = "histogram" end
  if meta then
    local plugin = M.field(meta, 1)
    out.kind, out.content = M.field(plugin, 1), M.field(plugin, 2)
  end
  return out
end

--- Whole records of a file, and how many bytes are behind them.
function M.records(path)
  local s, at, list = M.slurp(path), 1, {}
  while #s - at + 1 >= 16 do
    local n = le(s, at, 8)
    if #s - at + 1 < n + 16 then break end
    list[#list + 1] = s:sub(at + 12, at + 11 + n)
    at = at + n + 16
  end
  return list, #s - at + 1
end

--- Values (and graphs, kind "graph") of one file.
function M.of_file(path, list)
  list = list or {}
  for _, record in ipairs((M.records(path))) do
    local e = { step = M.field(record, 2) or 0 }
    local graph, summary = M.field(record, 4), M.field(record, 5)
    if graph then list[#list + 1] = { kind = "graph", tag = "", graph = graph, step = 0 } end
    for _, f in ipairs(summary and M.fields(summary) or {}) do list[#list + 1] = value_of(e, f[2]) end
  end
  return list
end

--- Those of all files of a directory.
function M.of(dir)
  local list = {}
  local p = io.popen(("ls %s/events.out.* 2>/dev/null"):format(dir))
  for path in p:lines() do M.of_file(path, list) end
  p:close()
  return list
end

--- Steps and values of a tag.
function M.tag(list, tag)
  local out = {}
  for _, e in ipairs(list) do
    if e.tag == tag then out[#out + 1] = e end
  end
  return out
end

--- Names of nodes of a graph, to the names of their inputs.
function M.nodes(graph)
  local out = {}
  for _, f in ipairs(M.fields(graph)) do
    if f[1] == 1 then
      local inputs = {}
      for _, g in ipairs(M.fields(f[2])) do
        if g[1] == 3 then inputs[#inputs + 1] = g[2] end
      end
      out[M.field(f[2], 1)] = inputs
    end
  end
  return out
end

return M
