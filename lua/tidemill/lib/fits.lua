--- Do the shapes of targets and predictions belong together?
---
--- Ways: "each" a target for each prediction, where sizes of one broadcast; "exact" and
--- "one_hot" the same without broadcasting; "ids" a class id for each row of scores;
--- "labels" ids that are compared with ids or with scores for `classes` classes.  -1: a size that is not
--- known while tracing.

local errors = require "tidemill.errors"
local shapes = require "tidemill.lib.shapes"

local M = {}

local function is_one(n) return n == 1 or n == -1 end

--- An axis for an axis; a last one of size one may be missing.
local function ranks_fit(t, p)
  local more = #p - #t
  if more == 1 then return is_one(p[#p]) end
  if more == -1 then return is_one(t[#t]) end
  return more == 0
end

local function sizes_fit(t, p, exact)
  for i = 1, math.min(#t, #p) do
    local free = t[i] == -1 or p[i] == -1 or (not exact and (t[i] == 1 or p[i] == 1))
    if not free and t[i] ~= p[i] then return false end
  end
  return true
end

local ways = {}

function ways.each(t, p) return ranks_fit(t, p) and sizes_fit(t, p, false) end

function ways.exact(t, p) return ranks_fit(t, p) and sizes_fit(t, p, true) end

ways.one_hot = ways.exact

--- The axes before the classes are the same.
function ways.ids(t, p)
  local more = #p - #t
  if not (more == 1 or (more == 0 and #t > 0 and is_one(t[#t]))) then return false end
  for i = 1, #p - 1 do
    if t[i] ~= -1 and p[i] ~= -1 and t[i] ~= p[i] then return false end
  end
  return true
end

function ways.labels(t, p, classes)
  local scored = classes and classes > 1 and p[#p] == classes
  if scored then return ways.ids(t, p) end
  return ways.exact(t, p)
end

--- Are there ids where one-hot targets should be?
local function has_ids(t, p) return #p > 0 and p[#p] > 1 and ways.ids(t, p) end

local function wanted(way, t, p, other)
  if way == "ids" or way == "labels" then
    return "class ids, one an example" .. (other and " (one-hot targets: " .. other .. ")" or "")
  end
  if way == "one_hot" and has_ids(t, p) then
    return "one-hot targets, a number for each class (class ids: "
      .. (other or ("make them one-hot, tm.one_hot(ids, %d)"):format(p[#p])) .. ")"
  end
  return "a target for each prediction"
    .. (other and has_ids(t, p) and (" (class ids beside scores: %s)"):format(other) or "")
end

--- Raise where they do not.  `where`: whose targets; `other`: what takes the other kind.
function M.check(where, name, way, t, p, other, classes)
  if ways[way](t, p, classes) then return end
  errors.raise("invalid_argument", "the targets y%s have the shape %s, %s predictions %s: %s takes %s",
    where and (' of the output "%s"'):format(where) or "", shapes.text(t), where and "its" or "the", shapes.text(p),
    name, wanted(way, t, p, other))
end

return M
