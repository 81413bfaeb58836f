--- tm.data: datasets are descriptions (source + transforms); C makes their elements.
---
--- C's elements are flat lists of tensors; a Dataset keeps the structure beside.

local closed = require "tidemill.lib.closed"
local colon = require "tidemill.lib.colon"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local shape_text = require("tidemill.lib.shapes").text
local trace = require "tidemill.trace"

local D, unpack = core.data, table.unpack or unpack
local M = {}

---@class tm.data.Dataset
---@field element_spec table  the structure of an element, each leaf { shape, dtype }
local Dataset = { __name = "tm.data.Dataset" }
local methods = {}
function Dataset.__index(self, key)
  if key == "element_spec" then
    local types = D.types(self._handle)
    return nest.map(function(i) return setmetatable(types[i.at], M.Spec) end, self._shape)
  end
  return methods[key]
end

--- A leaf of an element_spec.
M.Spec = { __name = "tm.TensorSpec" }
M.Spec.__index = M.Spec
function M.Spec.__tostring(s) return ("%s %s"):format(s.dtype, shape_text(s.shape)) end

local function spec_text(spec)
  if not nest.is_nested(spec) then return tostring(spec) end
  local parts = {}
  for _, k in ipairs(nest.keys(spec)) do
    parts[#parts + 1] = (type(k) == "string" and k .. " = " or "") .. spec_text(spec[k])
  end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

function Dataset:__tostring() return "tm.data.Dataset of " .. spec_text(self.element_spec) end

--- What `for x in ds` calls.
function Dataset.__call()
  errors.raise("invalid_argument", "a dataset is no function; a loop over its elements is: for x in ds:each() do")
end

function Dataset.__len()
  errors.raise("invalid_argument", "#: a dataset has no length that is always known; ask ds:cardinality()")
end

--- `from`: the dataset whose options it inherits.
local function make(handle, shape, from)
  return setmetatable({ _handle = handle, _shape = shape, _options = from and from._options }, Dataset)
end

--- Is x a dataset?
function M.is_dataset(x) return getmetatable(x) == Dataset end

local function check(where, x)
  if not M.is_dataset(x) then
    errors.raise("invalid_argument", "%s: a dataset is wanted, got %s", where, kinds.a(x))
  end
  return x
end

--- Text of an element_spec, for signatures.
function M.spec_key(spec)
  if getmetatable(spec) == M.Spec then return spec.dtype .. table.concat(spec.shape, ",") end
  local parts = {}
  for _, k in ipairs(nest.keys(spec)) do parts[#parts + 1] = tostring(k) .. "=" .. M.spec_key(spec[k]) end
  return "{" .. table.concat(parts, ";") .. "}"
end

-- --- structures ---

--- Numbers, booleans, strings and lists of these are one leaf; tensors too.
local function is_leaf(x)
  if type(x) ~= "table" or getmetatable(x) ~= nil then return true end
  local first, depth = x, 0
  while type(first) == "table" and getmetatable(first) == nil do
    if first[1] == nil then return next(first) == nil end
    first, depth = first[1], nest.deeper(depth)
  end
  return not core.is_tensor(first) and type(first) ~= "table"
end

local function structure(x, flat, depth)
  if is_leaf(x) then
    flat[#flat + 1] = core.as_value(x)
    return nest.slot(#flat)
  end
  local out = {}
  depth = nest.deeper(depth)
  for _, k in ipairs(nest.keys(x)) do out[k] = structure(x[k], flat, depth) end
  return out
end

--- An element in its structure, from the flat tensors.
local function element(shape, flat)
  return nest.map(function(i) return flat[i.at] end, shape)
end

--- Arguments of a user's function: a list is unpacked, everything else is one argument.
local function call(fn, e)
  if nest.is_nested(e) and e[1] ~= nil then return fn(unpack(e)) end
  return fn(e)
end

-- --- sources ---

--- One element a row of the tensors in a structure.
function M.from_tensor_slices(struct)
  local flat = {}
  local shape = structure(struct, flat)
  return make(D.slices(flat), shape)
end

--- One element: the structure itself.
function M.from_tensors(struct)
  local flat = {}
  local shape = structure(struct, flat)
  return make(D.tensors(flat), shape)
end

--- int64 scalars start, start + step, ... before stop; one number: from 0.
function M.range(start, stop, step)
  if stop == nil then start, stop = 0, start end
  return make(D.range(start, stop, step or 1), nest.slot(1))
end

local function list_of(where, list)
  if not nest.is_nested(list) or list[1] == nil then
    errors.raise("invalid_argument", "%s takes a list of datasets, as in %s{ a, b }", where, where)
  end
  return list
end

--- Elements side by side.
function M.zip(list)
  list_of("zip", list)
  local handles, shapes, n = {}, {}, 0
  for i, ds in ipairs(list) do
    handles[i] = check("zip", ds)._handle
    shapes[i] = nest.map(function(k) return nest.slot(k.at + n) end, ds._shape)
    n = n + #D.types(ds._handle)
  end
  local from = list[1]
  for _, ds in ipairs(list) do
    if M.resumes(ds) then from = ds end
  end
  return make(D.zip(handles), shapes, from)
end

local function names_of(x)
  if type(x) == "string" then return { x } end
  return x
end

local function files(where, o, field)
  local list = names_of(options.need(where, o, field))
  if type(list) ~= "table" or #list == 0 then
    errors.raise("invalid_argument", "%s: %s must be a file name or a list of them", where, field)
  end
  return list
end

local function column(c, i)
  if type(c) == "string" then return { name = c } end
  if type(c) ~= "table" then
    errors.raise("invalid_argument", "csv: column %d must be a name or { name, dtype, default }", i)
  end
  if type(c[1] or c.name) ~= "string" or (c[1] or c.name) == "" then
    errors.raise("invalid_argument", "csv: column %d has no name; it must be a name or { name, dtype, default }", i)
  end
  local default = c[3]
  if default == nil then default = c.default end
  local dtype = c[2] or c.dtype
  if dtype ~= nil and type(dtype) ~= "string" then
    errors.raise("invalid_argument", 'csv: the dtype of column "%s" is a name as "float32", got %s', c[1] or c.name,
      kinds.a(dtype))
  end
  return { name = c[1] or c.name, dtype = dtype, default = default ~= nil and tostring(default) or nil }
end

--- Columns by name: dtypes of some; the others are inferred.  `names`: those there are.
local function named_columns(given, names)
  local list, at = {}, {}
  for i, name in ipairs(names) do list[i], at[name] = column(name, i), i end
  for name, c in pairs(given) do
    if not at[name] then options.unknown("csv", "column", name, names) end
    if type(c) ~= "table" then c = { dtype = c } end
    list[at[name]] = column({ name, c.dtype or c[1], c.default == nil and c[2] or c.default }, at[name])
  end
  return list
end

--- What the headers say, without columns and label of the user's.
local function header_names(o)
  local plain = {}
  for k, v in pairs(o) do plain[k] = v end
  plain.columns, plain.label = nil, nil
  return D.names(D.csv(plain))
end

--- `columns` as C takes them: a list.
local function columns_of(o)
  if type(o.columns) ~= "table" then
    errors.raise("invalid_argument", "csv: columns is a list of names, or a table of dtypes by name, got %s",
      kinds.a(o.columns))
  end
  local list, named = {}, {}
  for i, c in ipairs(o.columns) do list[i] = column(c, i) end
  for k, v in pairs(o.columns) do
    if type(k) == "string" then named[k] = v end
  end
  if next(named) == nil then return list end
  if #list > 0 then
    errors.raise("invalid_argument", "csv: columns is a list of names and { name, dtype }, or a table of dtypes by "
      .. "name, not both")
  end
  if not o.header then
    errors.raise("invalid_argument", "csv: dtypes by name need the names of a header; header = false takes a list of "
      .. 'all columns, as in { "a", { "b", "float32" } }')
  end
  return named_columns(named, header_names(o))
end

--- The error of a csv source; for a column or a label that the header lacks with the nearest.
local function explain(o, e)
  local fine, names = pcall(header_names, o)
  if o.header and fine then
    local has = {}
    for _, name in ipairs(names) do has[name] = true end
    for _, c in ipairs(o.columns or {}) do
      if not has[c.name] then options.unknown("csv", "column", c.name, names) end
    end
    if o.label and not has[o.label] then options.unknown("csv", "label", o.label, names) end
  end
  error(e, 0)
end

--- Rows of csv files as tables by column name; with `label` elements are { row, label }.
--- The first line is a header where `columns` does not list the columns; `header` says
--- otherwise.  `columns`: a list of names, or of { name, dtype, default }; with a header it
--- chooses.  Or a table of dtypes by name, which keeps all columns: { age = "float32" }.
function M.csv(opts)
  if type(opts) == "string" then opts = { files = opts } end
  local o = options.read("csv", opts, { "files", "columns", "header", "label", "na_value", "delimiter", "quote",
    "comment", "skip", "compression", "check" })
  o.files = files("csv", o, "files")
  local by_name = type(o.columns) == "table" and next(o.columns) ~= nil and o.columns[1] == nil
  if o.header == nil then o.header = o.columns == nil or by_name end
  if o.columns ~= nil then o.columns = columns_of(o) end
  local ok, handle = pcall(D.csv, o)
  if not ok then explain(o, handle) end
  local shape, label = {}, nil
  for i, name in ipairs(D.names(handle)) do
    if name == o.label then label = nest.slot(i) else shape[name] = nest.slot(i) end
  end
  return make(handle, label and { shape, label } or shape)
end

--- Lines of text files, without line ends.
function M.text_line(opts)
  local o = options.read("text_line", type(opts) == "string" and { files = opts } or opts, { "files", "compression" })
  o.files = files("text_line", o, "files")
  return make(D.text_line(o), nest.slot(1))
end

--- Images and labels in the IDX format (MNIST): { image, label } in uint8.
function M.idx(opts)
  local o = options.read("idx", opts, { "images", "labels", "compression" })
  o.images = files("idx", o, "images")
  if o.labels then o.labels = files("idx", o, "labels") end
  return make(D.idx(o), o.labels and { nest.slot(1), nest.slot(2) } or nest.slot(1))
end

-- --- transforms ---

--- Trace fn on an element of these types; the graph and the structure of its results.
local function traced(self, name, fn)
  if type(fn) ~= "function" and not (getmetatable(fn) or {}).__call then
    errors.raise("invalid_argument", "%s takes a function of an element, got %s", name, kinds.a(fn))
  end
  local types, shape = D.types(self._handle), nil
  local graph = trace.graph(name, function(tr)
    local args, flat = {}, {}
    for i, t in ipairs(types) do args[i] = core.trace_arg(tr, t.dtype, t.shape) end
    local r = nest.pack(call(fn, element(self._shape, args)))
    local result = r[1]
    if r.n > 1 then
      result = r
      result.n = nil
    end
    if result == nil then errors.raise("invalid_argument", "%s: the function returns nothing", name) end
    if name == "filter" and result == false then
      errors.raise("invalid_argument", "filter: the function returns Lua's false, for whatever element: == never "
        .. "looks into a tensor; use x:equal(y)")
    end
    shape = structure(result, flat)
    return flat
  end, { name = name })
  return core.graph_optimize(graph), shape
end

--- Each element through fn, which is traced once.
function methods:map(fn, opts)
  options.read("map", opts, { "parallel" })
  local graph, shape = traced(self, "map", fn)
  return make(D.map(self._handle, graph), shape, self)
end

--- The elements for which fn gives true.
function methods:filter(fn)
  local graph = traced(self, "filter", fn)
  return make(D.filter(self._handle, graph), self._shape, self)
end

--- Draw from a buffer of n elements.
function methods:shuffle(n, opts)
  local o = options.read("shuffle", opts, { "seed", reshuffle = true })
  return make(D.shuffle(self._handle, n, o.seed, o.reshuffle), self._shape, self)
end

--- n elements stacked; the last may be smaller.
function methods:batch(n, opts)
  local o = options.read("batch", opts, { drop_remainder = false })
  options.count("batch", "the batch size", n, 1)
  return make(D.batch(self._handle, n, o.drop_remainder), self._shape, self)
end

--- n times over; without n for ever.
function methods:rep(n) return make(D.rep(self._handle, n), self._shape, self) end

for _, name in ipairs { "unbatch", "take", "skip", "prefetch", "cache" } do
  local fn = D[name]
  methods[name] = function(self, n) return make(fn(self._handle, n), self._shape, self) end
end

--- Elements index, index + count, ...; index from 0, a number or tm.distribute's
--- current_worker_index().
function methods:shard(count, index)
  if core.is_tensor(index) then
    local value = index
    if value.symbolic and trace.is_worker(value) then
      return make(D.shard(self._handle, count, -1), self._shape, self)
    end
    if value.symbolic then
      errors.raise("invalid_argument", "shard: the index must be a number or current_worker_index()")
    end
    index = value:item()
  elseif type(index) == "table" and (getmetatable(index) or {}).__tm_worker_index then
    index = -1
  end
  return make(D.shard(self._handle, count, index), self._shape, self)
end

--- { number, element }: numbers count from `start` (0).
function methods:enumerate(start)
  local shape = nest.map(function(i) return nest.slot(i.at + 1) end, self._shape)
  return make(D.enumerate(self._handle, start or 0), { nest.slot(1), shape }, self)
end

--- Elements of this dataset, then those of another.
function methods:concatenate(other)
  return make(D.concatenate(self._handle, check("concatenate", other)._handle), self._shape, self)
end
function M.concatenate(list)
  list_of("concatenate", list)
  local ds = check("concatenate", list[1])
  for i = 2, #list do ds = ds:concatenate(list[i]) end
  return ds
end

local restarts = { restart = true, resume = true }

--- The same dataset with options, which transforms after it inherit: on_restart, where the
--- iterator of a worker that comes back begins ("restart": at the first element; "resume":
--- behind the last closure that was completed); deterministic (the order always is).
function methods:with_options(opts)
  local o = options.read("with_options", opts, { "on_restart", "deterministic" })
  if o.on_restart ~= nil and not restarts[o.on_restart] then
    errors.raise("invalid_argument", 'with_options: on_restart is "restart" or "resume", got %s',
      tostring(o.on_restart))
  end
  if o.deterministic ~= nil and type(o.deterministic) ~= "boolean" then
    errors.raise("invalid_argument", "with_options: deterministic is true or false, got %s", kinds.a(o.deterministic))
  end
  local all = {}
  for k, v in pairs(self._options or {}) do all[k] = v end
  for k, v in pairs(o) do all[k] = v end
  return make(self._handle, self._shape, { _options = all })
end

--- Does a worker's iterator go on where it was when the worker comes back?
function M.resumes(ds) return (ds._options or {}).on_restart == "resume" end

--- Number of elements, "infinite" or "unknown".
function methods:cardinality() return D.cardinality(self._handle) end

-- --- iterators ---

---@class tm.data.Iterator
local Iterator = { __name = "tm.data.Iterator", __tm_iterator = true }
Iterator.__index = Iterator

local function iterator(value, handle, ds)
  return setmetatable({ _value = value, _handle = handle, _shape = ds._shape, element_spec = ds.element_spec,
    _dataset = ds }, Iterator)
end

--- A position in the dataset, from its start.
function methods:iterator()
  local epoch = rawget(self, "_epochs") or 0
  rawset(self, "_epochs", epoch + 1)
  local value, handle = D.iterator(self._handle, epoch)
  return iterator(value, handle, self)
end

--- The next element; raises out_of_range at the end.
function Iterator:next()
  local flat = { D.next(self._value) }
  if #flat == 0 then errors.raise("out_of_range", "the iterator has no more elements") end
  return element(self._shape, flat)
end

--- The next element, nil at the end.
function Iterator:try_next()
  local flat = { D.next(self._value) }
  if #flat == 0 then return nil end
  return element(self._shape, flat)
end

local function handle_of(self, where)
  if not self._handle then
    errors.raise("failed_precondition", "%s: an iterator has a state outside of traced functions only", where)
  end
  if core.tracing() then
    errors.raise("failed_precondition", "%s: inside a traced function it would be called once, by the trace; call it "
      .. "outside", where)
  end
  return self._handle
end

--- Where it is, as a string to keep: position, epoch, seed, and what the dataset was made
--- from.
---@return string
function Iterator:state() return D.state(handle_of(self, "state")) end

--- Go on from a state: the elements are those that the other iterator would have given.
--- Raises invalid_argument for the state of another dataset.
function Iterator:restore(state)
  if type(state) ~= "string" then
    errors.raise("invalid_argument", "restore takes what it:state() gave, a string, not a %s", kinds.of(state))
  end
  D.restore(handle_of(self, "restore"), state)
  return self
end

--- for element in it do ... end
Iterator.__call = Iterator.try_next

function Iterator:__tostring() return "tm.data.Iterator of " .. spec_text(self.element_spec) end

--- for element in ds:each() do ... end
function methods:each()
  local it = self:iterator()
  return function() return it:try_next() end
end

M._methods = {} -- as they are written, for tm.help
for name, fn in pairs(methods) do M._methods[name] = fn end
colon.check(Dataset, methods)

--- An iterator (of this process or a per-worker one) as argument of a trace.
function M.trace_iterator(tr, it)
  local ds = it._dataset
  local value = it._value or D.iterator_type(ds._handle)
  return iterator(core.trace_iterator(tr, value), nil, ds)
end

--- What describes a dataset: a function is called here, eagerly.
function M.describe(fn)
  local ds = trace.describe(fn)
  return check("the dataset function", ds)
end

--- DatasetCreator(fn, { input_options }): what fit takes in place of a dataset.
function M.DatasetCreator(fn, given) return require("tidemill.fit.inputs").creator(fn, given) end

return closed.list(M, "source of tm.data")
