--- Nested structures: lists and string-keyed tables of leaves.
---
--- A leaf is everything but a plain table (one without metatable), so tensors,
--- variables and symbols are leaves.  Keys are walked in order: positions first, then
--- names by byte order.

local M = {}

local unpack = rawget(table, "unpack") or rawget(_G, "unpack")

--- A table that is a structure and not an object.
function M.is_nested(x) return type(x) == "table" and getmetatable(x) == nil end

--- Keys of a structure in walking order.  A list with `n` may have holes.
function M.keys(x)
  local keys, names = {}, {}
  local n = math.max(rawget(x, "n") or 0, #x)
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
  if rawget(x, "n") then out.n = x.n end
  return out
end

--- Leaves in walking order, appended to `out`.
function M.flatten(x, out)
  out = out or {}
  if not M.is_nested(x) then
    out[#out + 1] = x
  else
    for _, k in ipairs(M.keys(x)) do M.flatten(x[k], out) end
  end
  return out
end

--- Is there a leaf for which test(leaf) holds?
function M.any(test, x)
  if not M.is_nested(x) then return test(x) and true or false end
  for _, v in pairs(x) do
    if M.any(test, v) then return true end
  end
  return false
end

--- Arguments as a list that remembers how many there are.
function M.pack(...) return { n = select("#", ...), ... } end

function M.unpack(t) return unpack(t, 1, t.n or #t) end

return M
