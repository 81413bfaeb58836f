--- tm.train.Checkpoint: save and restore a structure of models, optimizers, metrics,
--- variables and plain values.
---
---     local checkpoint = tm.train.Checkpoint{ model = m, optimizer = o, epoch = 0 }
---     checkpoint.epoch = 1
---     local path, err = checkpoint:save("runs/ckpt")          -- runs/ckpt-1
---     local status, err = checkpoint:restore(path)
---     status:assert_consumed()
---
--- Variables of a cluster are all as they are at one moment, and their ps write them while
--- training goes on.  Ps that do not see the directory are noticed; with { stream = true }
--- as second argument this process writes all files in any case.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local saving = require "tidemill.train.saving"
local state = require "tidemill.train.state"
local status = require "tidemill.train.status"
local tree = require "tidemill.train.tree"

local M = {}

---@class tm.train.Checkpoint
---@field save_counter tm.Variable  how often it was saved
local Checkpoint = { __name = "tm.train.Checkpoint" }
local methods = {}

--- What a Checkpoint keeps for itself: no key of its user's can be one of these.
local ROOT, STREAM = {}, {}

function tree.root_of(x) return getmetatable(x) == Checkpoint and rawget(x, ROOT) or nil end

--- The variable that numbers what is saved; it lives in this process.
local function counter(self)
  local root = rawget(self, ROOT)
  if not root.save_counter then
    root.save_counter = place.variable(false, 0, { name = "save_counter", shape = {}, dtype = "int64",
      trainable = false })
  end
  return root.save_counter
end

function Checkpoint.__index(self, key)
  if methods[key] then return methods[key] end
  if key == "save_counter" then return counter(self) end
  return rawget(self, ROOT)[key]
end

function Checkpoint.__newindex(self, key, value)
  if methods[key] or key == "save_counter" or type(key) ~= "string" then
    errors.raise("invalid_argument", 'Checkpoint: "%s" cannot be the name of a thing to save', tostring(key))
  end
  rawget(self, ROOT)[key] = value
  status.look_again(self)
end

function Checkpoint:__tostring()
  local names = {}
  for k in pairs(rawget(self, ROOT)) do names[#names + 1] = k end
  table.sort(names)
  return ("tm.train.Checkpoint{ %s }"):format(table.concat(names, ", "))
end

local function check_path(where, path)
  options.path("Checkpoint: " .. where, "a path", path)
  if core.tracing() then
    errors.raise("failed_precondition", "Checkpoint: %s inside a traced function", where)
  end
  return (path:gsub("(.)/+$", "%1"))
end

--- fn(), again when a ps was lost under it and restored.
local function again(fn) return require("tidemill.distribute.restoring").again(fn) end

local swept = {}

--- Take away what saves left that were killed; once a process for each name.
local function sweep(path)
  if swept[path] then return end
  swept[path] = true
  core.ckpt.sweep(state.split(path))
end

--- how: as saving.save; what the Checkpoint was made with counts too.
local function write(self, path, how)
  how = how or {}
  how.stream = how.stream or rawget(self, STREAM)
  return again(function() return saving.save(path, tree.walk(rawget(self, ROOT)), how) end)
end

--- Write a checkpoint of exactly this path, without number: the path, or nil and why not.
function methods:write(path)
  path = check_path("write", path)
  sweep(path)
  return write(self, path)
end

--- The same; how: as saving.save.
function methods:_write(path, how)
  path = check_path("write", path)
  sweep(path)
  return write(self, path, how)
end

--- Write PREFIX-N, N being save_counter: the path, or nil and why not.
---@param given? { number: integer, keep_state: boolean, how: table }  of the manager
function methods:save(prefix, given)
  prefix = check_path("save", prefix)
  given = options.read("save", given, { "number", "keep_state", "how" })
  sweep(prefix)
  local v = counter(self)
  local before = v:read():item()
  v:assign(before + 1)
  local path = ("%s-%d"):format(prefix, given.number or before + 1)
  local saved, err = write(self, check_path("save", path), given.how)
  if saved and not given.keep_state then
    local dir, name = state.split(path)
    local ok
    ok, err = state.change(dir, { add = name, time = os.time() })
    if not ok then saved = nil end
  end
  if not saved then
    v:assign(before)
    return nil, err
  end
  return path
end

local function restore(self, where, path, given)
  local names = options.read(where, given, { "names" }).names
  return again(function() return status.restore(self, rawget(self, ROOT), path, nil, names) end)
end

--- Restore from a path: a status, or nil and why not.  nil restores nothing.
--- Join first: a function that runs meanwhile sees no torn row or dense shard, but maybe
--- some variables as they were and some as they are in the checkpoint, and its updates
--- count on top.
--- { names = { ["name in the checkpoint"] = variable } }: these by name, besides what the
--- structure says.
function methods:restore(path, given)
  if path ~= nil then
    path = check_path("restore", path)
    counter(self)
  end
  return restore(self, "restore", path, given)
end

--- As restore, without save_counter.
function methods:read(path, given) return restore(self, "read", check_path("read", path), given) end

--- As read, all or nothing: leaves for which need(leaf) holds must be there.
function methods:_read_whole(path, need, skip, names)
  path = check_path("read", path)
  return again(function()
    return status.restore(self, rawget(self, ROOT), path, nil, names, { need = need, skip = skip })
  end)
end

--- Restore what is here, or only what lives on some ps, after a ps was lost.
function methods:_bring_back(path, only)
  counter(self)
  return status.restore(self, rawget(self, ROOT), path, only)
end

--- Checkpoint({ model = m, ... }, { stream = false })
function M.new(given, more)
  if given ~= nil and (type(given) ~= "table" or getmetatable(given) ~= nil) then
    errors.raise("invalid_argument", "Checkpoint takes one table of things to save, got %s", kinds.a(given))
  end
  local self = setmetatable({}, Checkpoint)
  rawset(self, ROOT, {})
  local o = options.read("Checkpoint", more, { stream = false })
  rawset(self, STREAM, options.flag("Checkpoint", "stream", o.stream))
  for k, v in pairs(given or {}) do self[k] = v end
  return self
end

--- Is x a Checkpoint?
function M.is(x) return type(x) == "table" and getmetatable(x) == Checkpoint end

return M
