--- model:save_weights and model:load_weights.
---
--- Weights are saved as a checkpoint of { model = m }, by the ps that hold them where they
--- live on a cluster.  They are read from any checkpoint that has a "model" (one of
--- ModelCheckpoint, a manager, model:save), and from plain safetensors files by name.
---
--- Invariant: before the first weight is assigned, all that the model has were found, with
--- their dtypes and shapes (`skip_mismatch`: those that do not fit stay as they are).

local checkpoint = require "tidemill.train.checkpoint"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local shapes = require "tidemill.lib.shapes"
local state = require "tidemill.train.state"
local status = require "tidemill.train.status"
local tree = require "tidemill.train.tree"

local M = {}

local SUFFIX = "%.safetensors$"

--- A path without slashes at its end.
function M.path(where, path)
  options.path(where, "the path of a directory", path)
  if core.tracing() then errors.raise("failed_precondition", "%s inside a traced function", where) end
  return (path:gsub("(.)/+$", "%1"))
end

--- Raise unless the model has its weights.
function M.built(where, model)
  if model.built then return end
  errors.raise("failed_precondition", '%s: the model "%s" has no weights yet; call it on a batch first, or begin it '
    .. "with tm.Input", where, model.name)
end

--- Write the weights, and what layers learned by adapt, as a checkpoint: the path, or nil
--- and why not.
function M.save(model, path)
  path = M.path("save_weights", path)
  if path:match(SUFFIX) then
    errors.raise("invalid_argument", "save_weights writes a directory, got %q; model:export(dir) writes one "
      .. "model.safetensors", path)
  end
  M.built("save_weights", model)
  return checkpoint.new({ model = model }):write(path)
end

-- --- reading ---

local function must(x, err)
  if x == nil then error(err, 0) end
  return x
end

--- The variables that a model cannot do without.
local function weights_of(model)
  local set = {}
  for _, v in ipairs(model.weights) do set[v] = true end
  return set
end

--- Functions that were traced hold what layers had learned.
function M.forget_traces(model)
  model:walk(function(layer)
    if layer.adapted then rawset(model, "_steps", nil) end
  end)
end

local function from_checkpoint(model, path, o)
  local weights = weights_of(model)
  local function need(l) return not o.skip_mismatch and l.kind == "variable" and weights[l.variable] == true end
  local found = must(checkpoint.new({ model = model }):_read_whole(path, need, o.skip_mismatch))
  if not model.built then return found end
  return found:assert_nontrivial_match():_close()
end

--- The entry of a file for a leaf: by its place in the model, or by the variable's name.
local function entry_of(l, entries)
  local by_place = l.name:match "^model/(.*)$"
  local function known(name) return name and entries[name] and name end
  return known(by_place) or known(l.name) or known(l.variable.name)
end

local function fits(l, e)
  return e.dtype == l.variable.dtype and shapes.text(e.shape) == shapes.text(l.variable.shape)
end

--- What of the file goes where: all of it is compared first.
local function match(model, path, entries, o)
  local todo, lacking, weights = {}, {}, weights_of(model)
  for _, l in ipairs(tree.walk({ model = model }).leaves) do
    local name = l.kind == "variable" and entry_of(l, entries)
    if name and fits(l, entries[name]) then
      todo[#todo + 1] = { name = name, variable = l.variable }
    elseif name and not o.skip_mismatch then
      local v, e = l.variable, entries[name]
      errors.raise("invalid_argument", '"%s" is %s of shape %s in "%s", and %s of shape %s here', name, e.dtype,
        shapes.text(e.shape), path, v.dtype, shapes.text(v.shape))
    elseif l.kind == "variable" and weights[l.variable] then
      lacking[#lacking + 1] = l.variable.name
    end
  end
  if #lacking > 0 and not o.skip_mismatch then
    errors.raise("not_found", '"%s" lacks %s', path, status.some(lacking))
  end
  if #todo == 0 then errors.raise("failed_precondition", 'nothing of the model is in "%s"', path) end
  return todo
end

--- Shard by shard, so that a large table is never here whole.
local function assign(file, item)
  local from = 0
  for _, part in ipairs(item.variable.variables) do
    local rows = #item.variable.shape > 0 and part.shape[1] or 1
    part:assign(must(file:read(item.name, from, rows)))
    from = from + rows
  end
end

local function from_file(model, path, o)
  M.built("load_weights", model)
  local file = must(core.safetensors(path))
  local ok, err = pcall(function()
    local entries = {}
    for _, e in ipairs(file:tensors()) do entries[e.name] = e end
    for _, item in ipairs(match(model, path, entries, o)) do assign(file, item) end
  end)
  file:close()
  if not ok then error(err, 0) end
  return true
end

local function is_file(path)
  local f = io.open(path, "rb")
  local text = f and f:read(1) -- a directory opens and cannot be read
  if f then f:close() end
  return text ~= nil
end

local function load(model, path, o)
  if path:match(SUFFIX) or is_file(path) then return from_file(model, path, o) end
  if not state.exists(path) then path = state.latest(path) or path end
  return from_checkpoint(model, path, o)
end

--- Read weights: of a checkpoint that has a "model" (or a directory of them: the latest),
--- or of a .safetensors file, by name.  A status (true for a file), or nil and why not.
---@param given? { skip_mismatch: boolean }  leave what is missing or of another shape as it is
function M.load(model, path, given)
  path = M.path("load_weights", path)
  local o = options.read("load_weights", given, { skip_mismatch = false })
  options.flag("load_weights", "skip_mismatch", o.skip_mismatch)
  local ok, x = pcall(place.eagerly, load, model, path, o)
  if not ok then return nil, errors.wrap(x) end
  M.forget_traces(model)
  return x
end

return M
