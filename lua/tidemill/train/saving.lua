--- Writing what tree.lua found into a checkpoint: values are read through ops, one shard
--- at a time, so that this process holds little of a large table.

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

function write.random(w, l)
  local seed, seeded, runs = core.ckpt.random_state()
  for k, x in pairs { seed = seed, seeded = seeded, runs = runs } do
    must(w:value(M.RANDOM .. l.name .. "/" .. k, x))
  end
end

local function write_all(path, tree)
  local w = must(core.ckpt.create(path))
  local ok, err = pcall(function()
    for _, l in ipairs(tree.leaves) do write[l.kind](w, l) end
    for _, a in ipairs(tree.aliases) do must(w:value(M.ALIAS .. a[1], a[2])) end
    must(w:commit())
  end)
  w:close()
  if not ok then error(err, 0) end
  return path
end

--- Save a tree at a path: the path, or nil and the error.
function M.save(path, tree)
  local ok, x = pcall(write_all, path, tree)
  if ok then return x end
  return nil, errors.wrap(x)
end

return M
