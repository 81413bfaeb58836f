--- Nested structures of arguments, results and elements: lists and string-keyed tables.
---
--- A leaf is everything but a plain table, one without metatable.  Keys are walked in
--- order, positions first, then names by byte order, so a structure and the flat list
--- of its leaves say the same.

local errors = require "tidemill.errors"

local M = {}

local unpack = table.unpack or unpack

local DEPTH_MAX = 64

--- One level further down; raises where no structure ends that does not contain itself.
function M.deeper(depth)
  depth = (depth or 0) + 1
  if depth > DEPTH_MAX then
    errors.raise("invalid_argument", "tables are nested more than %d deep: does a table contain itself?", DEPTH_MAX)
  end
  return depth
end

--- A table that is a structure and not an object.
function M.is_nested(x) return type(x) == "table" and getmetatable(x) == nil end

--- Arguments as a list that remembers how many there are.
function M.pack(...) return { n = select("#", ...), ... } end

function M.unpack(t) return unpack(t, 1, t.n or #t) end

--- Keys of a structure in walking order.  A number under "n" is the length of a list with
--- holes and no leaf; anything else there is an entry like the others.
function M.keys(x)
  local keys, names = {}, {}
  for i = 1, #x do
    if x[i] ~= nil then keys[i] = i end
  end
  local listed, sparse = #x, #keys < #x
  for k in pairs(x) do
    local t = type(k)
    if t == "string" then
      if k ~= "n" or type(x.n) ~= "number" then names[#names + 1] = k end
    elseif t ~= "number" or k ~= math.floor(k) then
      errors.raise("invalid_argument", "a structure has positions and names as keys, not %s", tostring(k))
    elseif k < 1 or k > listed then
      sparse = true
    end
  end
  if sparse then
    keys = {}
    for k in pairs(x) do
      if type(k) == "number" then keys[#keys + 1] = k end
    end
    table.sort(keys)
  end
  table.sort(names)
  for _, k in ipairs(names) do keys[#keys + 1] = k end
  return keys
end

--- The same structure with each leaf replaced by fn(leaf).
function M.map(fn, x, depth)
  if not M.is_nested(x) then return fn(x) end
  local out = {}
  depth = M.deeper(depth)
  for _, k in ipairs(M.keys(x)) do out[k] = M.map(fn, x[k], depth) end
  if type(x.n) == "number" then out.n = x.n end
  return out
end

--- The leaves in walking order.
function M.flatten(x, out, depth)
  out = out or {}
  if not M.is_nested(x) then
    out[#out + 1] = x
  else
    depth = M.deeper(depth)
    for _, k in ipairs(M.keys(x)) do M.flatten(x[k], out, depth) end
  end
  return out
end

--- Path of a key for messages: [1], .name
function M.path(path, key)
  return path .. (type(key) == "number" and "[" .. key .. "]" or "." .. tostring(key))
end

--- The same with fn(leaf, path), for messages that say where.
function M.map_path(fn, x, path, depth)
  if not M.is_nested(x) then return fn(x, path) end
  local out = {}
  depth = M.deeper(depth)
  for _, k in ipairs(M.keys(x)) do out[k] = M.map_path(fn, x[k], M.path(path, k), depth) end
  if type(x.n) == "number" then out.n = x.n end
  return out
end

--- A place in a flat list, as the leaf of a structure.  No plain number: { n = 1 } would
--- read as the length of a list.
local Slot = {}
function M.slot(at) return setmetatable({ at = at }, Slot) end

--- A structure like `x` whose leaves are taken from a list.
function M.fill(x, list)
  local i = 0
  return M.map(function()
    i = i + 1
    return list[i]
  end, x)
end

return M
