--- A model as the graph of what it computes: for export, and for models of classes that
--- a file cannot name.  What is loaded from one predicts, evaluates and trains on as the
--- graph says; there are no layers in it.

local context = require "tidemill.layers.context"
local codec = require "tidemill.models.codec"
local core = require "tidemill.core"
local describe = require "tidemill.models.describe"
local errors = require "tidemill.errors"
local func = require "tidemill.func"
local initializers = require "tidemill.initializers"
local models = require "tidemill.models"
local nest = require "tidemill.lib.nest"
local place = require "tidemill.lib.place"
local trace = require "tidemill.trace"

local M = {}

--- Types of the inputs in their structure, as placeholders.
local function inputs_of(model)
  if rawget(model, "inputs") then
    return nest.map(function(s) return func.placeholder { shape = s.shape, dtype = s.dtype } end, model.inputs)
  end
  local from = rawget(model, "_built_from")
  if from then return from end
  return errors.raise("failed_precondition", 'the model "%s" was never called, so that nobody knows its inputs; call '
    .. "it on a batch first", model.name)
end

--- The graph of model(x), where x has these types, and the structure of its results.
local function traced(model, spec)
  local shape
  local graph = trace.graph("serving_default", function(tr)
    local x = nest.map(function(s) return core.trace_arg(tr, s.dtype, s.shape) end, spec)
    local out = context.run_scratch(function() return model(x, { training = false }) end)
    local flat = {}
    shape = nest.map(function(v)
      flat[#flat + 1] = core.as_value(v)
      return { ["$"] = "result", at = #flat }
    end, out)
    return flat
  end, { name = "serving_default", first = true })
  return graph, shape
end

--- Specs of the variables that a graph touches, with the tensors that hold them.
local function variables_of(model, graph, tensors)
  local by_uid, list = {}, {}
  for v, name in pairs(tensors) do
    if v._uid then by_uid[core.graph_uid(v._uid)] = { v, name } end
  end
  for i, uid in ipairs(core.graph_variables(graph)) do
    local text = core.graph_uid(uid)
    local found = by_uid[text]
    if not found then
      errors.raise("invalid_argument", 'the model "%s" uses a variable that none of its fields or layers holds, so it '
        .. "would not be saved; keep it in one, as in self.table = v", model.name)
    end
    local v = found[1]
    list[i] = { uid = text, name = v.name, shape = v.shape, dtype = v.dtype, trainable = v.trainable,
      tensor = found[2] }
  end
  return list
end

--- The description of root.model by its graph; second: its variables by the names of
--- their tensors.
function M.describe(root)
  local model = root.model
  local spec = inputs_of(model)
  local graph, shape = traced(model, spec)
  local tensors = describe.tensors_of(root)
  local variables = variables_of(model, graph, tensors)
  local ctx = { where = model.name }
  local by_name = {}
  for v, name in pairs(tensors) do by_name[name] = v end
  local types = {}
  for i, t in ipairs(core.graph_types(graph)) do types[i] = { shape = t.shape, dtype = t.dtype } end
  return {
    format = describe.FORMAT, version = describe.VERSION, tidemill = core.version, name = model.name,
    signatures = { serving_default = { inputs = codec.encode(ctx, spec), outputs = shape, types = types } },
    graph = core.graph_pack(graph), variables = variables,
  }, by_name
end

-- --- what is loaded ---

---@class tm.models.GraphModel : tm.Model
local GraphModel = models.Model:extend("GraphModel")

function GraphModel:init(given) rawset(self, "_given", { n = 0 }); self.kept = given.variables end

function GraphModel:call(x)
  local flat = nest.flatten(x)
  for i, v in ipairs(flat) do flat[i] = core.as_value(v) end
  local out = core.graph_replay(self._graph, flat)
  return nest.map(function(at) return out[at.at] end, self._results)
end

local function variable(ctx, e)
  if type(e) ~= "table" or type(e.uid) ~= "string" or type(e.tensor) ~= "string" then
    codec.bad(ctx, "a variable without uid and tensor")
  end
  return place.variable(place.current() or false, initializers.Zeros(), {
    name = tostring(e.name), shape = codec.shape(ctx, e.shape, 0), dtype = tostring(e.dtype),
    trainable = e.trainable ~= false,
  })
end

--- Results of the signature: places in the flat list, as leaves.
local function results(ctx, x, n, depth)
  if type(x) ~= "table" or depth > 64 then codec.bad(ctx, "the results of a signature") end
  if x["$"] == "result" then
    if type(x.at) ~= "number" or x.at < 1 or x.at > n or x.at % 1 ~= 0 then codec.bad(ctx, "the place of a result") end
    return nest.slot(x.at)
  end
  local out = {}
  for k, v in pairs(x) do out[k] = results(ctx, v, n, depth + 1) end
  return out
end

--- A model of a description by graph; second: its variables by tensor.
function M.model(doc)
  local ctx = { where = "the file" }
  local signature = type(doc.signatures) == "table" and doc.signatures.serving_default
  if type(doc.graph) ~= "string" or type(signature) ~= "table" or type(doc.variables) ~= "table" then
    codec.bad(ctx, "a graph without signature or variables")
  end
  local list, uids, names = {}, {}, {}
  for i, e in ipairs(doc.variables) do
    list[i] = variable(ctx, e)
    uids[e.uid], names[e.tensor] = list[i]._uid, list[i]
  end
  local graph = core.graph_unpack(doc.graph, uids)
  local model = GraphModel { variables = list, name = tostring(doc.name) }
  rawset(model, "_graph", graph)
  rawset(model, "_results", results(ctx, signature.outputs, #core.graph_types(graph), 0))
  local spec = codec.decode(ctx, signature.inputs)
  local flat = nest.flatten(spec)
  if #flat ~= #core.graph_args(graph) then codec.bad(ctx, "a graph that takes other inputs than its signature says") end
  rawset(model, "_built_from", spec)
  rawset(model, "built", true)
  return model, names
end

return M
