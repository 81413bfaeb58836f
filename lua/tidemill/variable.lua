--- tm.Variable: state that ops read and assign.
---
--- An object names its variable by uid; the value lives in this process or on parameter
--- servers (the scope decides).  All access is by ops, so it joins an open trace.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local scope = require "tidemill.scope"
local shape_text = require("tidemill.lib.shapes").text
local trace = require "tidemill.trace"

local ops, unpack = core.ops, table.unpack or unpack

local M = {}

---@class tm.Variable
---@field dtype string
---@field shape integer[]
---@field name string
---@field trainable boolean
---@field device string
---@field variables tm.Variable[]  shards; an unsharded variable has itself
local Variable = { __name = "tm.Variable", __tm_variable = true }
M.Variable = Variable

local methods = {}

--- Handles by uid: a traced function keeps those of the variables that it touches.
local handles = setmetatable({}, { __mode = "v" })

--- Names by handle.
local names = setmetatable({}, { __mode = "k" })

function Variable.__index(self, key)
  if type(key) ~= "string" then return self:read()[key] end
  local m = methods[key]
  if m ~= nil then return m end
  if key == "rank" then return #self.shape end
  return core.methods[key]
end

function Variable.__newindex(self, key, value)
  if type(key) == "string" then return rawset(self, key, value) end
  errors.raise("invalid_argument", "%s: elements are not assigned by position: use v:assign(x), or "
    .. "v:scatter_update(ids, rows) with ids from 0", self.name)
end

function Variable:__len()
  if #self.shape == 0 then errors.raise("invalid_argument", "#: a scalar has no first axis") end
  return self.shape[1]
end

function Variable:__tostring()
  if self.sharded then
    return ("tm.ShardedVariable(%q, shape %s, %s, %d shards)"):format(self.name, shape_text(self.shape), self.dtype,
      #self.variables)
  end
  return ("tm.Variable(%q, shape %s, %s, %s)"):format(self.name, shape_text(self.shape), self.dtype, self.device)
end

--- What the ops of this variable are told; `mode` only where an op takes it.
local function where(self, mode)
  return { uid = self._uid, dtype = self.dtype, shape = self.shape, shard = self._shard, mode = mode }
end

--- The value.
function methods:read() return ops.read_variable(where(self)) end
methods.value = methods.read

function Variable.__tm_tensor(self) return self:read() end

local function assign(mode)
  return function(self, x)
    ops.assign_variable(core.as_value(x, self.dtype), where(self, mode))
    return self
  end
end

methods.assign = assign "set"
methods.assign_add = assign "add"
methods.assign_sub = assign "sub"
-- With mode = "sync": once in a round (core/graph/state.h).
methods._add_once = assign "add_once"
methods._sub_once = assign "sub_once"

local function ids_of(ids)
  ids = core.as_value(ids, "int64")
  if ids.dtype ~= "int64" then ids = ops.cast(ids, "int64") end
  return ids
end

local function scatter(mode)
  return function(self, ids, rows)
    ids, rows = ids_of(ids), core.as_value(rows, self.dtype)
    if ids.rank ~= 1 then
      local row = { unpack(self.shape, 2) }
      ids = ops.reshape(ids, { -1 })
      rows = ops.reshape(rows, { -1, unpack(row) })
    end
    ops.scatter_variable(ids, rows, where(self, mode))
    return self
  end
end

methods.scatter_update = scatter "set"
methods.scatter_add = scatter "add"
methods.scatter_sub = scatter "sub"
methods._scatter_sub_once = scatter "sub_once"

--- Rows by ids: shape ids.shape + shape[2:].
function methods:sparse_read(ids)
  return ops.gather_variable(core.as_value(ids, "int64"), where(self))
end

--- One step of an optimizer: grad is a tensor, or tm.IndexedSlices.
--- rule: its name on the ps; hyper: what it takes after the learning rate.
function methods:_apply(rule, optimizer, grad, lr, t, hyper)
  local o = where(self)
  o.rule, o.optimizer, o.hyper = rule, optimizer, hyper
  if M.is_slices(grad) then
    return ops.apply_optimizer_rows(ids_of(grad.indices), grad.values, lr, t, o)
  end
  return ops.apply_optimizer(core.as_value(grad, self.dtype), lr, t, o)
end

--- What an optimizer keeps beside this variable.
function methods:_slot(optimizer, name)
  return ops.read_slot { uid = self._uid, dtype = self.dtype, shape = self.shape, optimizer = optimizer, slot = name }
end

for _, name in ipairs { "add", "sub", "mul", "div", "mod", "pow" } do
  Variable["__" .. name] = function(a, b) return ops[name](a, b) end
end
function Variable.__unm(a) return ops.neg(a) end
function Variable.__idiv(a, b) return ops.floordiv(a, b) end

local function compare()
  errors.raise("invalid_argument",
    "variables are not compared by Lua: use v:read():item(), or v:less(x) and tm.cond in a traced function")
end
Variable.__lt, Variable.__le = compare, compare

-- --- gradients by rows ---

---@class tm.IndexedSlices
---@field values tm.Tensor   rows
---@field indices tm.Tensor  ids of the rows, int64; may repeat
---@field dense_shape integer[]
local Slices = { __name = "tm.IndexedSlices" }
Slices.__index = Slices
M.Slices = Slices

function M.slices(values, indices, dense_shape)
  return setmetatable({ values = values, indices = indices, dense_shape = dense_shape, dtype = values.dtype,
    shape = dense_shape }, Slices)
end

function M.is_slices(x) return type(x) == "table" and getmetatable(x) == Slices end

--- All rows: those that were not named are zero.
function Slices:dense()
  return ops.unsorted_segment_sum(self.values, self.indices, self.dense_shape[1])
end

function Slices.__tm_tensor(self) return self:dense() end

function Slices:__tostring()
  return ("tm.IndexedSlices(rows %s of shape %s)"):format(shape_text(self.values.shape), shape_text(self.dense_shape))
end

-- --- making ---

local function shards_of(self, shards)
  if #shards == 1 then return { self } end
  local list = {}
  for k, s in ipairs(shards) do
    local shape = { s.rows, unpack(self.shape, 2) }
    list[k] = setmetatable({
      _uid = self._uid, _shard = k - 1, _handle = self._handle, dtype = self.dtype, shape = shape,
      name = ("%s/part_%d"):format(self.name, k - 1), trainable = self.trainable, device = s.device, shards = { s },
      offset = s.offset,
    }, Variable)
    list[k].variables = { list[k] }
  end
  return list
end

--- An object for a variable that exists: { uid, handle, shards = { {ps, device, offset,
--- rows} ... } } with its dtype, shape, name.
function M.wrap(made, fields)
  local self = setmetatable({
    _uid = made.uid, _handle = made.handle, dtype = fields.dtype, shape = fields.shape, name = fields.name,
    trainable = fields.trainable, device = made.shards[1].device, shards = made.shards,
  }, Variable)
  handles[made.uid] = made.handle
  names[made.handle] = fields.name
  self.variables = shards_of(self, made.shards)
  self.sharded = #made.shards > 1
  return self
end

--- The handles of these uids, for whoever must keep the variables.
function M.handles(uids)
  local list = {}
  for i, uid in ipairs(uids) do list[i] = handles[uid] or false end
  return list
end

--- The name of the variable with a uid; nil: there is none any more.
function M.name_of(uid)
  local handle = handles[uid]
  return handle and names[handle]
end

local local_scope = {}

function local_scope:create_variable(spec)
  local init = spec.init
  if spec.fn then init = core.as_value(spec.fn(spec.shape, spec.dtype, nil, spec.shape), spec.dtype) end
  local uid, handle = core.variable(spec.name, spec.dtype, spec.shape, init)
  return { uid = uid, handle = handle,
    shards = { { ps = -1, device = "/job:chief/task:0", offset = 0, rows = spec.shape[1] or 1 } } }
end

local function check_trace(home)
  if home and home.takes_symbols then return end
  if trace.describing() then
    errors.raise("invalid_argument", "Creating variables in a dataset function is not allowed: make them before, "
      .. "in strategy:scope")
  end
  if not core.tracing() then return end
  local context = trace.context()
  if context and context.first then return end
  errors.raise("failed_precondition",
    "tm.Variable: a second trace of %s would make its variables anew; make variables outside of it, or once "
      .. "(if not v then v = tm.Variable(...) end)",
    context and context.name or "this function")
end

local function is_function(x)
  if type(x) == "function" then return true end
  local mt = getmetatable(x)
  return type(x) == "table" and type(mt) == "table" and mt.__call ~= nil and not mt.__tm_tensor
end

local function value_of(initial, o, symbols)
  local v = core.as_value(initial, o.dtype)
  if v.symbolic and not symbols then
    errors.raise("invalid_argument", "tm.Variable: the initial value is computed inside the traced function, so it "
      .. "is not known; give a number, a list, or a function (shape, dtype)")
  end
  if o.dtype and v.dtype ~= o.dtype then v = ops.cast(v, o.dtype) end
  if o.shape and #o.shape ~= v.rank then
    errors.raise("invalid_argument", "tm.Variable: the initial value has shape %s, not %s", shape_text(v.shape),
      shape_text(o.shape))
  end
  return v
end

local known = { "name", "trainable", "dtype", "shape", "colocate_with", "partition", "user", "scope" }

local function check_options(o)
  if o.name ~= nil and type(o.name) ~= "string" then
    errors.raise("invalid_argument", "tm.Variable: name is a string, got %s", kinds.a(o.name))
  end
  if o.shape ~= nil and type(o.shape) ~= "table" then
    errors.raise("invalid_argument", "tm.Variable: shape is a list of sizes, got %s", kinds.a(o.shape))
  end
end

local count = 0

--- Variable(initial, { name, trainable, dtype, shape }): initial is a tensor, a number, a
--- list, or a function (shape, dtype, offset, full_shape) that gives the rows from offset
--- on (then shape must be given).
function M.new(initial, given)
  local o = options.read("Variable", given, known)
  check_options(o)
  if initial == nil then errors.raise("invalid_argument", "tm.Variable: the initial value is missing") end
  if type(initial) == "table" and getmetatable(initial) == nil then
    for k in pairs(initial) do
      if type(k) == "string" then
        errors.raise("invalid_argument", "tm.Variable: options are the second argument, as in "
          .. "tm.Variable(1, { %s = ... })", k)
      end
    end
  end
  local home = o.scope
  if home == nil then home = scope.current() end
  check_trace(home)
  local symbols = home and home.takes_symbols
  local function make()
    local spec = { name = o.name or "Variable", user = o.user, partition = o.partition,
      colocate_with = o.colocate_with }
    if not o.name and count > 0 then spec.name = "Variable_" .. count end
    if not o.name then count = count + 1 end
    if is_function(initial) then
      if not o.shape then errors.raise("invalid_argument", "tm.Variable: a function as initial value needs shape") end
      spec.shape, spec.dtype = o.shape, o.dtype or "float32"
      local named = type(initial) == "table" and initial.named and initial:named(o.shape)
      spec.init = named or nil
      spec.fn = not named and initial or nil
    else
      spec.init = value_of(initial, o, symbols)
      spec.shape, spec.dtype = spec.init.shape, spec.init.dtype
    end
    local made = (home or local_scope):create_variable(spec)
    spec.trainable = o.trainable
    if o.trainable == nil then spec.trainable = spec.dtype:find "float" ~= nil end
    local v = M.wrap(made, spec)
    if home and home.note then home:note(v) end
    return v
  end
  if symbols then return make() end
  return trace.eagerly(make)
end

--- Text that tells variables apart: which, or which shard of it.
function M.key(x)
  if x._uid then return ("v%.0f.%d"):format(x._uid, x._shard or -1) end
  local parts = {}
  for k, v in ipairs(x.variables) do parts[k] = M.key(v) end
  return "V(" .. table.concat(parts, ",") .. ")"
end

function M.is(x) return type(x) == "table" and rawget(getmetatable(x) or {}, "__tm_variable") == true end

return M
