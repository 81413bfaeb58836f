--- model:save, model:export and tm.models.load.
---
--- A saved model is a checkpoint of { model, optimizer } (written by the ps that hold the
--- variables, all of one moment, whole or not at all) whose directory has a model.json
--- beside: the classes and configurations of tidemill.models.describe, or a graph
--- (tidemill.models.graph).  An exported one has all its data in model.safetensors.

local checkpoint = require "tidemill.train.checkpoint"
local core = require "tidemill.core"
local describe = require "tidemill.models.describe"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local rebuild = require "tidemill.models.rebuild"
local registry = require "tidemill.models.registry"
local state = require "tidemill.train.state"
local values = require "tidemill.lib.values"
local weights = require "tidemill.models.weights"

local M = {}

local SPARE = 1048576 -- elements that a model may have beside what its file holds

local function graphs() return require "tidemill.models.graph" end

local function must(x, err)
  if x == nil then error(err, 0) end
  return x
end

--- model:save(path, { include_optimizer = true, custom_objects }): the path, or nil and
--- why not.  What a file cannot hold raises.
function M.save(model, path, given)
  path = weights.path("save", path)
  local o = options.read("save", given, { "custom_objects", include_optimizer = true })
  options.flag("save", "include_optimizer", o.include_optimizer)
  registry.check_custom("save", o.custom_objects)
  weights.built("save", model)
  local root = { model = model, optimizer = o.include_optimizer and rawget(model, "optimizer") or nil }
  local doc
  if describe.has_class(model, o.custom_objects) then
    doc = place.eagerly(describe.model, root, o.custom_objects)
  else
    doc, root.optimizer = place.eagerly(graphs().describe, root), nil
  end
  return checkpoint.new(root):_write(path, { document = doc })
end

-- --- export ---

local function write_export(w, doc, by_name)
  local items = {}
  for i, e in ipairs(doc.variables) do items[i] = { name = e.tensor, dtype = e.dtype, shape = e.shape } end
  must(w:document(doc))
  local f = must(w:single(items))
  for _, e in ipairs(doc.variables) do
    for _, part in ipairs(by_name[e.tensor].variables) do must(f:put(part:read())) end
  end
  must(f:close())
  must(w:commit())
end

local function export(model, path)
  local doc, by_name = graphs().describe { model = model }
  local w = must(core.ckpt.create(path))
  local ok, err = pcall(write_export, w, doc, by_name)
  w:close()
  if not ok then error(err, 0) end
  return path
end

--- model:export(dir): what predicts, without classes and optimizer.
function M.export(model, path)
  path = weights.path("export", path)
  weights.built("export", model)
  local ok, x = pcall(place.eagerly, export, model, path)
  if ok then return x end
  if errors.is_error(x, "invalid_argument") or errors.is_error(x, "failed_precondition") then error(x, 0) end
  return nil, errors.wrap(x)
end

-- --- loading ---

--- Nothing is allocated that the file merely claims: variables may have as many elements
--- as it holds, and some more for metrics.
local function budget(reader)
  local left = SPARE
  for _, t in ipairs(reader:tensors()) do left = left + values.count(t.shape) end
  return function(name, shape)
    left = left - values.count(shape)
    if left < 0 then
      errors.raise("data_loss", 'the model\'s variable "%s" is larger than all that its file holds', tostring(name))
    end
  end
end

local function document(path)
  local doc, err = core.ckpt.document(path)
  if not doc and errors.is_error(err, "not_found") and state.exists(path) then
    errors.raise("not_found", '"%s" holds weights and no model; make the model and call model:load_weights(path)', path)
  end
  must(doc, err)
  if type(doc) ~= "table" or doc.format ~= describe.FORMAT then
    errors.raise("data_loss", '"%s" has a model.json of something else', path)
  end
  if doc.version ~= describe.VERSION then
    errors.raise("unimplemented", '"%s" is of version %s of the format; this is tidemill %s, which reads version %d',
      path, tostring(doc.version), core.version, describe.VERSION)
  end
  return doc
end

local function load_graph(path, doc)
  local model, names = graphs().model(doc)
  local status = must(checkpoint.new({}):read(path, { names = names }))
  status:assert_existing_objects_matched()
  return model
end

local function load_classes(path, doc, reader, o)
  local model = rebuild.model(doc, reader, o.custom_objects, o.compile)
  local needed = {}
  for _, v in ipairs(model.weights) do needed[v] = true end
  local root = { model = model, optimizer = rawget(model, "optimizer") }
  local function need(l) return l.kind == "variable" and needed[l.variable] == true end
  local status = must(checkpoint.new(root):_read_whole(path, need))
  if model.built then status:_close() end
  return model
end

local function load(path, o)
  local doc = document(path)
  local reader = must(core.ckpt.open(path))
  local ok, model = pcall(place.limited, budget(reader), function()
    if doc.graph ~= nil then return load_graph(path, doc) end
    return load_classes(path, doc, reader, o)
  end)
  reader:close()
  if ok then return model end
  if errors.is_error(model) then error(model, 0) end
  return errors.raise("data_loss", 'the model in "%s" cannot be made again: %s', path, tostring(model))
end

--- load(path, { custom_objects, compile = true }): the model, compiled as it was and with
--- its optimizer's state, or nil and why not.  A directory of several: the latest.
function M.load(path, given)
  path = weights.path("load", path)
  local o = options.read("load", given, { "custom_objects", compile = true })
  options.flag("load", "compile", o.compile)
  registry.check_custom("load", o.custom_objects)
  if not state.exists(path) then path = state.latest(path) or path end
  local ok, x = pcall(place.eagerly, load, path, o)
  if ok then return x end
  return nil, errors.wrap(x)
end

return M
