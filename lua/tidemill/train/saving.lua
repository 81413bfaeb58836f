--- Writing what tree.lua found into a checkpoint.  Variables of a cluster are written by
--- their ps, all as they are at one moment, while training goes on (core/cluster/save.h).
--- Those of this process are read through ops.

local core = require "tidemill.core"
local errors = require "tidemill.errors"

local M = {}

--- Names of values that are the checkpoint's own.
M.ALIAS, M.RANDOM = "@alias/", "@random/"

local function must(ok, err)
  if not ok then error(err, 0) end
  return ok
end

local write = {}

function write.variable(w, l)
  local v, first = l.variable, 0
  for _, shard in ipairs(v.variables) do
    must(w:put(l.name, shard:read(), v.shape, first))
    first = first + (shard.shape[1] or 1)
  end
end

function write.slot(w, l)
  local ok, x = pcall(l.optimizer.get_slot, l.optimizer, l.variable, l.slot)
  if ok then
    must(w:put(l.name, x, l.variable.shape, 0))
  elseif not errors.is_error(x, "not_found") then
    error(x, 0)
  end
end

function write.tensor(w, l)
  local x = l.holder[l.key]
  must(w:put(l.name, x, x.shape, 0))
end

function write.value(w, l) must(w:value(l.name, l.holder[l.key])) end

function write.adapted(w, l)
  local x = l.layer:get_adapted(l.key)
  if x then must(w:put(l.name, x, x.shape, 0)) end
end

function write.iterator(w, l) must(w:value(l.name, l.iterator:state())) end

--- One whose elements are dealt out: as it was at the moment of the variables.
local function write_dealt(w, l, moment)
  must(w:value(l.name, moment and l.iterator:_saved_state() or l.iterator:state()))
end

function write.random(w, l)
  local seed, seeded, runs = core.ckpt.random_state()
  for k, x in pairs { seed = seed, seeded = seeded, runs = runs } do
    must(w:value(M.RANDOM .. l.name .. "/" .. k, x))
  end
end

--- The holders of a variable: itself, or those that one was put together of by hand.
local function holders(l)
  local v = l.variable
  return v and (v._uid and { v } or v.variables) or {}
end

--- Do all of them live on ps?
local function in_cluster(l)
  local list = holders(l)
  for _, part in ipairs(list) do
    if not core.ckpt.in_cluster(part._uid) then return false end
  end
  return #list > 0
end

--- What ps write of a leaf.
local function add_items(items, l)
  local rule, hyper, first = nil, nil, 0
  if l.kind == "slot" then rule, hyper = l.optimizer:rule() end
  for _, part in ipairs(holders(l)) do
    items[#items + 1] = { name = l.name, shape = l.variable.shape, uid = part._uid, shard = part._shard,
      first = first, slot = l.slot, optimizer = l.slot and l.optimizer.uid, rule = rule, hyper = hyper }
    first = first + (part.shape[1] or 1)
  end
end

local function write_leaves(w, tree, how)
  local items, dealt = {}, {}
  for _, l in ipairs(tree.leaves) do
    if in_cluster(l) then
      add_items(items, l)
    elseif l.iterator and rawget(l.iterator, "_dealt") then
      dealt[#dealt + 1] = l
    else
      write[l.kind](w, l)
    end
  end
  if #items > 0 then M.last = must(w:save(items, how)) end -- pause, bytes, streamed, ...
  for _, l in ipairs(dealt) do write_dealt(w, l, #items > 0) end
end

local function write_all(path, tree, how)
  local w = must(core.ckpt.create(path))
  local ok, err = pcall(function()
    if how.document then must(w:document(how.document)) end
    write_leaves(w, tree, how)
    for _, a in ipairs(tree.aliases) do must(w:value(M.ALIAS .. a[1], a[2])) end
    must(w:commit())
  end)
  w:close()
  if not ok then error(err, 0) end
  return path
end

--- Save a tree at a path: the path, or nil and the error.
---@param how? { document: table, stream: boolean, still: boolean, mark: integer, base: string, base_mark: integer }
---document: the description of a model, written beside; stream: this process writes all
---files, also those of ps; still: no update begins until they are written; mark: a later
---save may be based on this one; base, base_mark: this one is based on an earlier
---(core/cluster/save.h)
function M.save(path, tree, how)
  how, M.last = how or {}, nil
  local ok, x = pcall(write_all, path, tree, how)
  if not ok and errors.is_error(x, "aborted") and not how.still then
    -- Rows changed faster than they were written (another chief: it fails again at once).
    core.log("info", ("saving \"%s\" again, without updates meanwhile: %s"):format(path, x.message))
    how.still = true
    ok, x = pcall(write_all, path, tree, how)
    how.still = nil
  end
  if ok then return x end
  return nil, errors.wrap(x)
end

return M
