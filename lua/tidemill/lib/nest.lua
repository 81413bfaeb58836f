--- Nested structures of arguments, results and elements: lists and string-keyed tables.
---
--- A leaf is everything but a plain table, one without metatable.  Keys are walked in
--- order, positions first, then names by byte order, so a structure and the flat list
--- of its leaves say the same.

local M = {}

local unpack = table.unpack or unpack

--- A table that is a structure and not an object.
function M.is_nested(x) return type(x) == "table" and getmetatable(x) == nil end

--- Arguments as a list that remembers how many there are.
function M.pack(...) return { n = select("#", ...), ... } end

function M.unpack(t) return unpack(t, 1, t.n or #t) end

--- Keys of a structure in walking order.
function M.keys(x)
  local keys, names = {}, {}
  local n = math.max(x.n or 0, #x)
  for i = 1, n do
    if x[i] ~= nil then keys[#keys + 1] = i end
  end
  for k in pairs(x) do
    if type(k) == "string" and k ~= "n" then names[#names + 1] = k end
  end
  table.sort(names)
  for _, k in ipairs(names) do keys[#keys + 1] = k end
  return keys
end

--- The same structure with each leaf replaced by fn(leaf).
function M.map(fn, x)
  if not M.is_nested(x) then return fn(x) end
  local out = {}
  for _, k in ipairs(M.keys(x)) do out[k] = M.map(fn, x[k]) end
  if x.n then out.n = x.n end
  return out
end

--- The leaves in walking order.
function M.flatten(x, out)
  out = out or {}
  if not M.is_nested(x) then
    out[#out + 1] = x
  else
    for _, k in ipairs(M.keys(x)) do M.flatten(x[k], out) end
  end
  return out
end

--- Path of a key for messages: [1], .name
function M.path(path, key)
  return path .. (type(key) == "number" and "[" .. key .. "]" or "." .. tostring(key))
end

--- The same with fn(leaf, path), for messages that say where.
function M.map_path(fn, x, path)
  if not M.is_nested(x) then return fn(x, path) end
  local out = {}
  for _, k in ipairs(M.keys(x)) do out[k] = M.map_path(fn, x[k], M.path(path, k)) end
  if x.n then out.n = x.n end
  return out
end

--- A structure like `x` whose leaves are taken from a list.
function M.fill(x, list)
  local i = 0
  return M.map(function()
    i = i + 1
    return list[i]
  end, x)
end

return M
