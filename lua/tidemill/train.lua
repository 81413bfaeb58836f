--- tm.train: checkpoints.

local kinds = require "tidemill.lib.kinds"
local checkpoint = require "tidemill.train.checkpoint"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local manager = require "tidemill.train.manager"
local options = require "tidemill.lib.options"
local state = require "tidemill.train.state"

local M = {
  Checkpoint = checkpoint.new,
  CheckpointManager = manager.new,
  is_manager = manager.is,
}

local POLL = 0.25 -- seconds between two looks at a directory

--- Path of the latest checkpoint of a directory, nil when there is none.
function M.latest_checkpoint(dir)
  options.path("latest_checkpoint", "a directory", dir)
  return state.latest((dir:gsub("(.)/+$", "%1")))
end

--- The next checkpoint that was not given yet.
local function newest(dir, last)
  local path = state.latest(dir)
  if path ~= last then return path end
end

--- The oldest on the list that was not given; names that left the list are forgotten.
local function oldest(dir, given)
  local list, there, found = state.read(dir), {}, nil
  for _, item in ipairs(list or {}) do
    local path = state.join(dir, item.name)
    there[path] = true
    if not found and not given[path] and state.exists(path) then found = path end
  end
  for path in pairs(list and given or {}) do
    if not there[path] then given[path] = nil end
  end
  return found
end

local function wait(find, timeout)
  local start = core.time()
  while true do
    local path = find()
    if path then return path end
    local left = timeout and start + timeout - core.time() or POLL
    if left <= 0 then return nil end
    core.sleep(math.min(left, POLL))
  end
end

--- for path in checkpoints_iterator(dir, { timeout, min_interval_secs, timeout_fn, every })
--- gives the latest checkpoint whenever it is another (`every`: each one in turn), until
--- `timeout` seconds bring none and timeout_fn is missing or gives true.
function M.checkpoints_iterator(dir, given)
  local o = options.read("checkpoints_iterator", given, { "timeout", "timeout_fn", min_interval_secs = 0,
    every = false })
  options.path("checkpoints_iterator", "a directory", dir)
  if o.timeout ~= nil then options.number("checkpoints_iterator", "timeout", o.timeout, 0) end
  if o.timeout_fn ~= nil then options.callable("checkpoints_iterator", "timeout_fn", o.timeout_fn) end
  options.number("checkpoints_iterator", "min_interval_secs", o.min_interval_secs, 0)
  options.flag("checkpoints_iterator", "every", o.every)
  dir = dir:gsub("(.)/+$", "%1")
  local last, seen, free = nil, {}, nil
  local function find()
    if o.every then return oldest(dir, seen) end
    return newest(dir, last)
  end
  return function()
    if free and free > core.time() then core.sleep(free - core.time()) end
    while true do
      local path = wait(find, o.timeout)
      if path then
        last, seen[path], free = path, true, core.time() + o.min_interval_secs
        return path
      end
      if not o.timeout_fn or o.timeout_fn() then return nil end
    end
  end
end

local function open(where, path)
  options.path(where, "the path of a checkpoint", path)
  path = path:gsub("(.)/+$", "%1")
  if not state.exists(path) then path = state.latest(path) or path end
  return core.ckpt.open(path)
end

--- The tensors of a checkpoint (or of a directory's latest), sorted by name: a list of
--- { name, shape, dtype }; nil and why not.
function M.list_variables(path)
  local reader, err = open("list_variables", path)
  if not reader then return nil, err end
  local list = reader:tensors()
  reader:close()
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

--- One tensor of a checkpoint; nil and why not.
function M.load_variable(path, name)
  if type(name) ~= "string" then
    errors.raise("invalid_argument", "load_variable takes a name as list_variables gives it, got %s", kinds.a(name))
  end
  local reader, err = open("load_variable", path)
  if not reader then return nil, err end
  local x
  x, err = reader:read(name)
  reader:close()
  return x, err
end

return M
