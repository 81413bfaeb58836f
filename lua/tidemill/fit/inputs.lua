--- What users give to fit, evaluate and predict, as one kind of thing: a source.
---
---     source = { dataset, cardinality, finite, per_worker, continues, steps, rows }
---
--- `dataset` has elements { x, y, weights } in batches.  `continues`: the next pass goes on
--- where the last ended; else each pass begins anew.  `steps`: what the user asked for.
--- `rows`: examples, where they are known.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local shapes = require "tidemill.lib.shapes"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local BATCH = 32

-- --- options ---

local no_targets = { predict = true, predict_on_batch = true }

--- What goes wrong when targets stand where options are wanted.
local function refuse_targets(where, what, x)
  local how = no_targets[where] and "it takes no targets" or where:match "_on_batch$"
    and ("the data come first: %s(x, y, { sample_weight = w })"):format(where)
    or ("targets are an option: model:%s(x, { y = y })"):format(where)
  errors.raise("invalid_argument", "%s: %s got %s; %s", where, what, kinds.a(x), how)
end

--- options.read of fit, evaluate, ...: targets that are given by position are told so.
function M.options(where, given, known)
  if given == nil then return options.read(where, given, known) end
  if not nest.is_nested(given) then refuse_targets(where, "options stand in one table,", given) end
  for k, v in pairs(given) do
    if type(k) == "number" then
      refuse_targets(where, ("options have names, entry %s has none,"):format(tostring(k)), v)
    end
  end
  return options.read(where, given, known)
end

-- --- elements as { x, y, weights } ---

--- Does a model take a list of several inputs?
local function takes_list(model)
  local declared = rawget(model, "inputs")
  return nest.is_nested(declared) and declared[1] ~= nil and #declared > 1
end

--- An element as the list { x, y, weights } that steps get: lists are that, everything
--- else is x.
function M.data(model, element)
  if not nest.is_nested(element) or element[1] == nil then return { element } end
  if takes_list(model) and not nest.is_nested(element[1]) then return { element } end
  return { element[1], element[2], element[3] }
end

-- --- DatasetCreator ---

---@class tm.data.DatasetCreator
local Creator = { __name = "tm.data.DatasetCreator" }
Creator.__index = Creator
function Creator:__tostring() return "tm.data.DatasetCreator" end

--- DatasetCreator(fn, { input_options }): fn(context) describes the dataset, which each
--- worker makes for itself.
function M.creator(fn, given)
  local o = options.read("DatasetCreator", given, { "input_options" })
  options.callable("DatasetCreator", "the first argument", fn)
  return setmetatable({ fn = fn, input_options = o.input_options }, Creator)
end

local context = { num_input_pipelines = 1, input_pipeline_id = 0, num_replicas_in_sync = 1 }

local function is_creator(x) return getmetatable(x) == Creator end

--- A per-worker dataset says so in its metatable's name.
local function is_per_worker(x)
  local mt = getmetatable(x)
  return type(mt) == "table" and mt.__name == "tm.PerWorkerDataset"
end

-- --- tensors ---

--- Leaves of x: tensors; numbers and lists of them become tensors.
local function tensors(where, x)
  return values.input(nest.map_path(function(v, path)
    if values.is_variable(v) then return v:read() end
    local t = type(v)
    if values.is_tensor(v) or t == "number" or t == "boolean" or t == "string" then return v end
    if values.is_symbol(v) then
      errors.raise("invalid_argument", "%s%s is a tm.Input; data are tensors or datasets", where, path)
    end
    return errors.raise("invalid_argument", "%s%s is %s; data are tensors, tables of tensors, datasets, "
      .. "tm.data.DatasetCreator or per-worker datasets", where, path, kinds.a(v))
  end, x, ""))
end

--- Rows of all leaves, which must agree.
local function count_rows(where, parts)
  for _, name in ipairs { "x", "y", "weights" } do
    if parts[name] ~= nil and #nest.flatten(parts[name]) == 0 then
      errors.raise("invalid_argument", "%s: %s is an empty table", where, name == "weights" and "sample_weight" or name)
    end
  end
  local rows, first
  nest.map_path(function(t, path)
    path = path:gsub("^%.weights", ".sample_weight")
    if #t.shape == 0 then errors.raise("invalid_argument", "%s: %s is a scalar; data have a first axis of examples",
      where, path:sub(2)) end
    if rows and t.shape[1] ~= rows then
      errors.raise("invalid_argument", "%s: %s has %d examples, %s has %d", where, first, rows, path:sub(2), t.shape[1])
    end
    rows, first = t.shape[1], first or path:sub(2)
  end, parts, "")
  return rows
end

--- Rows [from, from + n) of all leaves.
local function rows_of(parts, from, n)
  return nest.map(function(t) return t:narrow(1, from, n) end, parts)
end

--- { x = , y = , weights = } as the element { x, y, weights }.
local function element(parts)
  if parts.y == nil and parts.weights == nil then return { parts.x } end
  if parts.y == nil then errors.raise("invalid_argument", "sample_weight needs y") end
  return { parts.x, parts.y, parts.weights }
end

local function is_data(x) return values.is_tensor(x) or values.is_variable(x) end

--- Raise for options beside the entries of a list of data.
local function check_list(where, x)
  if not nest.is_nested(x) or x[1] == nil then return end
  for k, v in pairs(x) do
    if type(k) == "string" and (k ~= "n" or type(v) ~= "number") then
      errors.raise("invalid_argument", '%s: the data are a list, which has no entry "%s"%s', where, k,
        where == "validation_data" and "" or ("; options stand in a table of their own: %s({ x, y }, { %s = ... })")
        :format(where, k))
    end
  end
end

--- Is a list { x, y } or { x, y, weights }, and not a structure of inputs or a list of
--- numbers?  `o.pair` says so.
local function is_pair(model, x, o, kind)
  if not nest.is_nested(x) or x[1] == nil or #x > 3 then return false end
  if o.pair then return true end
  if o.y ~= nil or #x < 2 or not values.any(is_data, x) then return false end
  local c = rawget(model, "_compiled")
  if kind ~= "predict" and c and c.given.loss ~= nil then return true end
  return not takes_list(model) and (rawget(model, "inputs") ~= nil or rawget(model, "_stack") ~= nil)
end

--- Tensors as { x = , y = , weights = }.
local function parts_of(model, where, x, o, kind)
  local parts
  check_list(where, x)
  if is_pair(model, x, o, kind) then
    parts = { x = x[1], y = x[2], weights = x[3] }
  else
    parts = { x = x, y = o.y }
  end
  if o.sample_weight ~= nil then parts.weights = o.sample_weight end
  for _, name in ipairs { "x", "y", "weights" } do
    if parts[name] ~= nil then parts[name] = tensors(name == "weights" and "sample_weight" or name, parts[name]) end
  end
  if takes_list(model) and not nest.is_nested(parts.x) then
    errors.raise("invalid_argument", "%s: x is one tensor, the model takes %d: a list of them, or a table by name",
      where, #rawget(model, "inputs"))
  end
  return parts, count_rows(where, parts)
end

-- --- class weights ---

--- Class weights by id from 0, as a list in their order.
local function class_list(given)
  local n, list = 0, {}
  for _ in pairs(given) do n = n + 1 end
  n = math.max(n, 1)
  for i = 0, n - 1 do
    if type(given[i]) ~= "number" then
      errors.raise("invalid_argument", "class_weight has a number for each class id, from 0 to one less than the "
        .. "number of classes, as in { [0] = 1, [1] = 2.5 }; there is none for %d", i)
    end
    list[i + 1] = given[i]
  end
  return list
end

--- { x, y, weights } with the weight of each example's class in its weights.
local function weigher(given)
  if not nest.is_nested(given) then
    errors.raise("invalid_argument", "class_weight is a table of weights by class id, got %s", kinds.a(given))
  end
  local list = class_list(given)
  local weights = tm.tensor(list, "float32")
  return function(x, y, w)
    if y == nil then errors.raise("invalid_argument", "class_weight needs targets y") end
    if nest.is_nested(y) then
      errors.raise("invalid_argument", "class_weight is for models with one output; give sample_weight")
    end
    local ids = y
    if #y.shape >= 2 then
      local last = y.shape[#y.shape]
      ids = last > 1 and tm.argmax(y, -1) or tm.squeeze(y, -1)
    end
    ids = core.ops.check_ids(tm.cast(ids, "int64"), #list, "class_weight has no weight for the label")
    local by_class = tm.gather(weights, ids)
    return { x, y, w == nil and by_class or tm.cast(w, "float32") * by_class }
  end
end

-- --- sources ---

local function finish(source, o)
  if o.class_weight ~= nil then source.dataset = source.dataset:map(weigher(o.class_weight)) end
  source.cardinality = source.dataset:cardinality()
  source.finite = source.cardinality ~= "infinite"
  source.steps = o.steps
  return source
end

local function refuse(where, o, names)
  for _, name in ipairs(names) do
    if o[name] ~= nil then
      errors.raise("invalid_argument", "%s: %s goes with tensors; a dataset has its own", where, name)
    end
  end
end

--- Raise for elements that are one example and not a batch of them.
local function check_batched(model, where, ds)
  local declared = rawget(model, "inputs")
  if declared == nil then return end
  local wanted, given = nest.flatten(declared), nest.flatten(M.data(model, ds.element_spec)[1])
  for i, s in ipairs(#wanted == #given and wanted or {}) do
    local a, b = s.shape, given[i].shape
    if #a == #b + 1 and a[#a] ~= 1 then
      errors.raise("invalid_argument", "%s: the elements of the dataset have the shape %s, the model takes batches, "
        .. "%s: batch it, as in ds:batch(32)", where, shapes.text(b), shapes.text(a))
    end
  end
end

--- A source of a dataset; `steps` is steps_per_epoch.
local function of_dataset(model, where, ds, o, kind, per_worker)
  refuse(where, o, { "y", "sample_weight", "batch_size" })
  check_batched(model, where, ds)
  local source = finish({ dataset = ds, per_worker = per_worker }, o)
  source.continues = kind == "train" and (not source.finite
    or (o.steps ~= nil and o.steps ~= source.cardinality))
  return source
end

local function of_tensors(parts, rows, o, kind)
  if rows == 0 then errors.raise("invalid_argument", "the data have no examples") end
  local ds = tm.data.from_tensor_slices(element(parts))
  if kind == "train" and o.shuffle ~= false then ds = ds:shuffle(rows) end
  local size = o.batch_size or BATCH
  local batches = math.ceil(rows / size)
  local endless = kind == "train" and o.steps ~= nil and o.steps ~= batches
  ds = ds:batch(size)
  if endless then ds = ds:rep() end
  local source = finish({ dataset = ds, rows = rows }, o)
  source.continues = endless
  return source
end

--- The source of what was given.  `o`: y, sample_weight, class_weight, batch_size, shuffle,
--- steps, validation_split; `kind`: "train", "test", "predict".  A second source holds the
--- part that validation_split takes.
function M.source(model, where, x, o, kind)
  if x == nil then errors.raise("invalid_argument", "%s: data are missing: %s(x, { ... })", where, where) end
  if o.batch_size ~= nil then options.count(where, "batch_size", o.batch_size, 1) end
  if is_creator(x) then
    refuse(where, o, { "validation_split" })
    return of_dataset(model, where, tm.data.describe(function() return x.fn(context) end), o, kind)
  end
  if type(x) == "function" then
    refuse(where, o, { "validation_split" })
    return of_dataset(model, where, tm.data.describe(function() return x(context) end), o, kind)
  end
  if tm.data.is_dataset(x) or is_per_worker(x) then
    refuse(where, o, { "validation_split" })
    return of_dataset(model, where, is_per_worker(x) and x._dataset or x, o, kind, is_per_worker(x))
  end
  local parts, rows = parts_of(model, where, x, o, kind)
  local held = o.validation_split
  if not held or held == 0 then return of_tensors(parts, rows, o, kind) end
  options.number(where, "validation_split", held, 0, 1)
  local first = math.floor(rows * (1 - held))
  if first < 1 or first >= rows then
    errors.raise("invalid_argument", "%s: validation_split = %g of %d examples leaves one part empty", where, held,
      rows)
  end
  local rest = of_tensors(rows_of(parts, first + 1, rows - first), rows - first,
    { batch_size = o.validation_batch_size or o.batch_size }, "test")
  return of_tensors(rows_of(parts, 1, first), first, o, kind), rest
end

--- Raise for a dataset where one batch is wanted.
function M.check_batch(where, x)
  if tm.data.is_dataset(x) or is_per_worker(x) or is_creator(x) or values.is_iterator(x) then
    errors.raise("invalid_argument", "%s takes the tensors of one batch, got %s", where, kinds.a(x))
  end
end

--- One batch as the element { x, y, weights }.
function M.batch(model, where, x, y, o)
  local parts = parts_of(model, where, x, { y = y, sample_weight = o.sample_weight }, "predict")
  local e = element(parts)
  if o.class_weight ~= nil then e = weigher(o.class_weight)(e[1], e[2], e[3]) end
  return e
end

return M
