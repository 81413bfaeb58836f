--- What Checkpoint:restore gives: what was found goes to variables at once, the rest when
--- its variable is made (a layer that builds at its first call, a field set later).
---
--- Invariants
---   (1) Names, dtypes, shapes and checksums are compared before the first assignment.
---   (2) A leaf is restored at most once by one restore: training is never undone.

local Layer = require "tidemill.layers.base"
local kinds = require "tidemill.lib.kinds"
local Metric = require "tidemill.metrics.base"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local place = require "tidemill.lib.place"
local generators = require "tidemill.random"
local saving = require "tidemill.train.saving"
local tree = require "tidemill.train.tree"
local values = require "tidemill.lib.values"

local M = {}

---@class tm.train.Status
local Status = { __name = "tm.train.Status" }
Status.__index = Status

--- Statuses that wait for variables, by each object that they walked: a status lives as
--- long as something that it may still fill.  A weak table of LuaJIT keeps the keys that
--- its values lead to; there the objects themselves have the status, as a field, and
--- plain tables, which are the user's, have none.
local waiting = setmetatable({}, { __mode = "k" })
local ephemeral = _VERSION ~= "Lua 5.1"

local function status_of(object)
  if ephemeral then return waiting[object] end
  return waiting[object] and rawget(object, "_status")
end

local function hold(object, status)
  if ephemeral then
    waiting[object] = status
  elseif getmetatable(object) ~= nil then
    waiting[object] = true
    rawset(object, "_status", status)
  end
end

local function let_go(object)
  waiting[object] = nil
  if not ephemeral then rawset(object, "_status", nil) end
end

--- The first names of a list, for messages.
function M.some(list)
  local text = {}
  for i = 1, math.min(#list, 10) do text[i] = '"' .. list[i] .. '"' end
  if #list > 10 then text[11] = ("and %d more"):format(#list - 10) end
  return table.concat(text, ", ")
end

-- --- names ---

local function replaced(name, from, to)
  if name == from then return to end
  if name:sub(1, #from + 1) == from .. "/" then return to .. name:sub(#from + 1) end
end

--- The name under which the checkpoint has it: its own, or one by an object that either
--- side knows by two names.
local function find(self, name, aliases, has)
  if has(name) then return name end
  for _, a in ipairs(aliases) do
    local other = replaced(name, a[2], a[1])
    if other and has(other) then return other end
  end
  for _, a in ipairs(self.aliases) do
    local other = replaced(name, a[1], a[2])
    if other and has(other) then return other end
  end
end

local function shape_text(shape) return "(" .. table.concat(shape, ", ") .. ")" end

local function agrees(have, dtype, shape)
  return have.dtype == dtype and shape_text(have.shape) == shape_text(shape)
end

local function check(self, l, have, dtype, shape)
  if agrees(have, dtype, shape) then return end
  errors.raise("invalid_argument", '"%s" is %s of shape %s in "%s", and %s of shape %s here', l.name, have.dtype,
    shape_text(have.shape), self.path, dtype, shape_text(shape))
end

-- --- putting values in place ---

local function read(self, name)
  local x, err = self.reader:read(name)
  if x == nil then error(err, 0) end
  return x
end

--- What the holders of a variable are to load: themselves, or the shards of one that was
--- put together by hand.
local function loads(self, list, l, optimizer, slot)
  local v, from = l.variable, 0
  local function add(part, shard, at)
    list[#list + 1] = { uid = part._uid, shard = shard, name = l.found, from = at, optimizer = optimizer, slot = slot }
    self.brought[part._uid] = true
  end
  for _, part in ipairs(v._uid and { v } or v.variables) do
    if not self.only then add(part, part._shard, from) end
    for k, s in ipairs(self.only and part.shards or {}) do
      if self.only[s.ps] then add(part, part._shard or k - 1, from + (part._shard and 0 or s.offset)) end
    end
    from = from + (part.shape[1] or 1)
  end
end

local put, load = {}, {}

function load.variable(self, list, l) loads(self, list, l) end

--- Numbers of the slots as the rule "slot" of a ps has them (core/ps/rule.h).
local slot_number = {
  momentum = 0, rms = 1, mg = 2, accumulator = 3, accum_grad = 4, accum_var = 5, m = 6, v = 7, vhat = 8, linear = 9,
}

function load.slot(self, list, l) loads(self, list, l, l.optimizer.uid, slot_number[l.slot]) end

function put.tensor(self, l) l.holder[l.key] = read(self, l.found) end

function put.value(self, l) l.holder[l.key] = self.values[l.found] end

function put.adapted(self, l) l.layer:set_adapted(l.key, read(self, l.found)) end

function put.iterator(self, l)
  local state = self.values[l.found]
  if type(state) ~= "string" then
    errors.raise("invalid_argument", '"%s" is an iterator here, and a %s in "%s"', l.name, type(state), self.path)
  end
  l.iterator:restore(state)
end

function put.random(self, l)
  local at = saving.RANDOM .. l.found .. "/"
  core.ckpt.set_random_state(self.values[at .. "seed"], self.values[at .. "seeded"], self.values[at .. "runs"])
end

local function match(self, l, aliases)
  local function tensor(name) return self.tensors[name] ~= nil end
  local function value(name) return self.values[name] ~= nil end
  local function drawn(name) return self.values[saving.RANDOM .. name .. "/seed"] ~= nil end
  local has = (l.kind == "value" or l.kind == "iterator") and value or l.kind == "random" and drawn or tensor
  l.found = find(self, l.name, aliases, has)
  if not l.found then return false end
  local have = self.tensors[l.found]
  if self.skip and l.kind == "variable" and not agrees(have, l.variable.dtype, l.variable.shape) then return false end
  if l.kind == "variable" or l.kind == "slot" then
    check(self, l, have, l.variable.dtype, l.variable.shape)
  elseif l.kind == "tensor" then
    check(self, l, have, l.holder[l.key].dtype, l.holder[l.key].shape)
  end
  return true
end

local function use(self, l)
  if l.kind == "random" then
    for _, k in ipairs { "seed", "seeded", "runs" } do self.used[saving.RANDOM .. l.found .. "/" .. k] = true end
  else
    self.used[l.found] = true
  end
  self.done[l.name] = true
end

--- The plain table of a path, made where only its parents are there; nil where something
--- else is in the way.
local function table_at(walk, path)
  if walk.tables[path] then return walk.tables[path] end
  if path == "" then return nil end
  local above, key = path:match "^(.*)/([^/]*)$"
  local t = table_at(walk, above or "")
  key = tree.key_of(key or path)
  if not t or t[key] ~= nil then return nil end
  t[key] = {}
  walk.tables[path] = t[key]
  return t[key]
end

--- Values of plain tables that have no such key yet.
local function new_values(self, walk)
  local names = {}
  for name in pairs(self.values) do
    if not self.used[name] and name:sub(1, 1) ~= "@" then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local path, key = name:match "^(.*)/([^/]*)$"
    local t = table_at(walk, path or "")
    key = tree.key_of(key or name)
    if t and t[key] == nil then
      t[key] = self.values[name]
      self.used[name], self.done[name] = true, true
    end
  end
end

local function must(ok, err)
  if not ok then error(err, 0) end
end

--- Put in place what was matched: first everything is compared, then ps read their part.
local function fill(self, todo)
  local list = {}
  for _, l in ipairs(todo) do
    if load[l.kind] then
      load[l.kind](self, list, l)
    elseif l.kind == "tensor" or l.kind == "adapted" then
      must(self.reader:check(l.found))
    end
  end
  must(self.reader:load(self.path, list, true))
  for _, l in ipairs(todo) do -- these look at their states first, and may refuse them
    if l.kind == "iterator" then put.iterator(self, l) end
  end
  must(self.reader:load(self.path, list, false))
  for _, l in ipairs(todo) do
    if l.kind ~= "iterator" and put[l.kind] then put[l.kind](self, l) end
    use(self, l)
  end
end

--- Restore what is here now and was not restored before.
local function resolve(self)
  local walk = tree.walk(self.root)
  self.walked = walk.seen
  for _, l in ipairs(self.named) do walk.leaves[#walk.leaves + 1] = l end
  local todo, lacking = {}, {}
  self.missing = {}
  for _, l in ipairs(walk.leaves) do
    if not self.done[l.name] and (not self.only or load[l.kind]) then
      if match(self, l, walk.aliases) then
        todo[#todo + 1] = l
      elseif l.kind ~= "slot" and l.kind ~= "adapted" and l.name ~= "save_counter" then -- write() does not count
        self.missing[#self.missing + 1] = l.name
        if self.need and self.need(l) then lacking[#lacking + 1] = l.name end
      end
    end
  end
  if #lacking > 0 then errors.raise("not_found", 'the checkpoint "%s" lacks %s', self.path, M.some(lacking)) end
  fill(self, todo)
  if not self.only then new_values(self, walk) end
end

local function unused(self)
  local list = {}
  for name in pairs(self.tensors) do
    if not self.used[name] then list[#list + 1] = name end
  end
  for name in pairs(self.values) do
    if not self.used[name] and name:sub(1, 1) ~= "@" then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

local function stop(self)
  if self.reader then self.reader:close() end
  self.reader = nil
end

local function settle(self)
  if not self.reader then return end
  place.eagerly(resolve, self)
  if #unused(self) == 0 then stop(self) end
end

-- --- later ---

local watched = false

local function wait(self)
  if not watched then
    watched = true
    Layer.after_build(function() M.look_again() end)
    Metric.when_late(function() M.look_again() end)
  end
  hold(self.owner, self)
  for object in pairs(self.walked) do
    if object ~= generators then hold(object, self) end -- it is always there, and whole
  end
  self.walked = nil
end

local function look_again(self)
  local ok, err = pcall(settle, self)
  if not ok then stop(self) end
  if self.reader then wait(self) end
  if not ok then error(err, 0) end
end

--- Restore what became there since (of one checkpoint, or of all).
function M.look_again(owner)
  local found = {}
  for object in pairs(waiting) do
    local status = status_of(object)
    if not status.reader then
      let_go(object)
    elseif owner == nil or status.owner == owner then
      found[status] = true
    end
  end
  for status in pairs(found) do look_again(status) end
end

-- --- the status ---

local function open(self)
  local reader, err = core.ckpt.open(self.path)
  if not reader then error(err, 0) end
  self.reader = reader
  for _, t in ipairs(reader:tensors()) do self.tensors[t.name] = t end
  for _, v in ipairs(reader:values()) do
    self.values[v.name] = v.value
    if v.name:sub(1, #saving.ALIAS) == saving.ALIAS then
      self.aliases[#self.aliases + 1] = { v.name:sub(#saving.ALIAS + 1), v.value }
    end
  end
  table.sort(self.aliases, function(a, b) return a[1] < b[1] end)
end

local function restore(self)
  open(self)
  settle(self)
  if self.only then stop(self) end
  if self.reader then wait(self) end
end

--- Leaves for variables that are asked for by name.
local function by_name(names)
  local list = {}
  if names == nil then return list end
  if type(names) ~= "table" then
    errors.raise("invalid_argument", "restore: names is a table of variables by their names in the checkpoint, got %s",
      kinds.a(names))
  end
  for name, v in pairs(names) do
    if type(name) ~= "string" or not values.is_variable(v) then
      errors.raise("invalid_argument", "restore: names[%s] is %s; it takes a variable for each name",
        type(name) == "string" and ("%q"):format(name) or tostring(name),
        type(v) == "table" and "no variable" or type(v))
    end
    if v.device == "/job:worker" then
      errors.raise("invalid_argument", "restore: names[%q] is a %s", name, tree.OF_WORKERS)
    end
    list[#list + 1] = { name = name, kind = "variable", variable = v }
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

--- Restore a checkpoint's table from a path: a status, or nil and the error.  No path:
--- nothing is restored, and the status says so.
---@param only? table<integer, boolean>  indices of ps: only what lives there, now
---@param names? table<string, tm.Variable>  variables by what the checkpoint calls them
---@param how? { need: fun(leaf): boolean, skip: boolean }  need: leaves without which nothing
---is restored; skip: variables of another dtype or shape are taken for missing
function M.restore(owner, root, path, only, names, how)
  local self = setmetatable({ owner = owner, root = root, path = path, tensors = {}, values = {}, aliases = {},
    named = by_name(names),
    used = {}, done = {}, missing = {}, only = only, brought = {}, need = how and how.need, skip = how and how.skip },
    Status)
  if waiting[owner] and not only then stop(status_of(owner)) end
  if path == nil then return self end
  local ok, err = pcall(restore, self)
  if ok then return self end
  stop(self)
  return nil, errors.wrap(err)
end

local function loaded(self)
  if self.path == nil then
    errors.raise("failed_precondition", "nothing was restored: no checkpoint was given to restore()")
  end
  settle(self)
end

--- Raise unless everything that exists here was in the checkpoint.
function Status:assert_existing_objects_matched()
  loaded(self)
  if #self.missing > 0 then
    errors.raise("failed_precondition", 'the checkpoint "%s" lacks %s', self.path, M.some(self.missing))
  end
  return self
end

--- Raise unless, besides, everything in the checkpoint was used.
function Status:assert_consumed()
  self:assert_existing_objects_matched()
  local rest = unused(self)
  if #rest > 0 then
    errors.raise("failed_precondition", 'the checkpoint "%s" also holds %s, which nothing here takes (yet)', self.path,
      M.some(rest))
  end
  return self
end

--- Raise unless something was restored.
function Status:assert_nontrivial_match()
  loaded(self)
  if next(self.done) == nil then
    errors.raise("failed_precondition", 'nothing here is in the checkpoint "%s"', self.path)
  end
  return self
end

--- Nothing more will be made that the rest is for: let go of the files.
function Status:_close()
  stop(self)
  return self
end

--- It is known that not all is used.
function Status:expect_partial() return self end

function Status:__tostring()
  return ("tm.train.Status(%s)"):format(self.path or "nothing restored")
end

return M
