--- What a checkpoint holds: a walk over models, optimizers, metrics, variables and plain
--- Lua values, by structure (fields, list positions) and not by automatic names.
---
---     local tree = walk{ model = m, optimizer = o, epoch = 3 }
---     tree.leaves      -- { name, kind, ... }, in the same order on every run
---     tree.aliases     -- { { "optimizer", "model/optimizer" } }: an object met again
---
--- Kinds of leaves: "variable" (leaf.variable), "slot" (leaf.optimizer, .variable, .slot),
--- "tensor" and "value" (leaf.holder[leaf.key]), "random", "iterator" (leaf.iterator),
--- "adapted": what a layer learned in adapt (leaf.layer, leaf.key).
---
--- Names: keys are joined by "/"; in a key "." is written "..", "/" is ".S", and a string
--- that looks like a position, or like a name of the checkpoint's own ("@..."), begins
--- with ".N".
---
--- Invariants
---   (1) An object is walked once, under the first name it is met by.
---   (2) A layer's variable has the same name whatever else is in the checkpoint: it is
---       named by the layer's own fields, or by its position among what has none.

local Layer = require "tidemill.layers.base"
local kinds = require "tidemill.lib.kinds"
local Optimizer = require "tidemill.optimizers.base"
local class = require "tidemill.lib.class"
local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local random = require "tidemill.random"
local values = require "tidemill.lib.values"

local M = {}

local DEEPEST = 500 -- tables in tables

--- Slots of each rule; those that an optimizer does not use are not there.
local slots_of = {
  sgd = { "momentum" }, rmsprop = { "rms", "momentum", "mg" }, adagrad = { "accumulator" },
  adadelta = { "accum_grad", "accum_var" }, adam = { "m", "v", "vhat" }, adamw = { "m", "v" },
  adamax = { "m", "v" }, nadam = { "m", "v" }, ftrl = { "accumulator", "linear" },
}

--- A key as part of a name.
function M.key_text(key)
  if type(key) == "number" then return ("%d"):format(key) end
  local text = key:gsub("[./]", { ["."] = "..", ["/"] = ".S" })
  if text:match "^%-?%d+$" or text == "" or text:sub(1, 1) == "@" then text = ".N" .. text end
  return text
end

--- And back.
function M.key_of(text)
  if text:match "^%-?%d+$" then return tonumber(text) end
  if text:sub(1, 2) == ".N" then text = text:sub(3) end
  return (text:gsub("%.(.)", { ["."] = ".", S = "/" }))
end

local function join(path, key)
  local text = type(key) == "number" and ("%d"):format(key) or key
  return path == "" and text or path .. "/" .. text
end

--- What is said of a variable that each worker has for itself.
M.OF_WORKERS = "variable of each worker; save what read_all() of a PerWorkerVariable, or a function, gives"

local visit

--- What cannot be saved is misuse in a table of the user's, and nothing to an object.
local function refuse(walk, path, x, what)
  if walk.depth > 0 then return end
  if what then errors.raise("invalid_argument", 'Checkpoint: "%s" is a %s', path, what) end
  errors.raise("invalid_argument", 'Checkpoint: "%s" is a %s, which cannot be saved', path, kinds.of(x))
end

local function leaf(walk, fields) walk.leaves[#walk.leaves + 1] = fields end

--- Public fields of an object of lib/class, in the order they were set.
local function fields_of(x)
  local out, done = {}, {}
  for _, key in ipairs(rawget(x, "_fields") or {}) do
    local public = type(key) ~= "string" or key:sub(1, 1) ~= "_"
    if public and not done[key] then
      done[key] = true
      out[#out + 1] = key
    end
  end
  return out
end

local function visit_fields(walk, path, x)
  for _, key in ipairs(fields_of(x)) do
    local v = rawget(x, key)
    if type(v) == "table" then visit(walk, join(path, M.key_text(key)), v, x, key) end
  end
end

local function set_of(...)
  local set = {}
  for _, list in ipairs { ... } do
    for _, x in ipairs(list) do set[x] = true end
  end
  return set
end

--- Those of a list that are not in the set, by their position among these.
local function visit_rest(walk, path, name, list, set)
  local n = 0
  for _, x in ipairs(list) do
    if not set[x] then
      n = n + 1
      visit(walk, join(join(path, name), n), x)
    end
  end
end

local function visit_layer(walk, path, layer)
  visit_fields(walk, path, layer)
  local named, all = Layer.tracked(layer), layer:tracked()
  visit_rest(walk, path, "layers", all.layers, set_of(named.layers))
  visit_rest(walk, path, "variables", all.variables, set_of(named.variables))
  visit_rest(walk, path, "weights", layer._own, set_of(all.variables))
  for _, key in ipairs(layer.adapted or {}) do
    leaf(walk, { name = join(path, key), kind = "adapted", layer = layer, key = key })
  end
  for _, m in ipairs(layer._named_metrics) do
    visit(walk, join(join(path, "metrics"), M.key_text(m.name)), m)
  end
end

local function visit_metric(walk, path, metric)
  visit_fields(walk, path, metric)
  local named = {}
  for _, key in ipairs(fields_of(metric)) do
    local v = rawget(metric, key)
    if values.is_variable(v) then named[v] = true end
  end
  visit_rest(walk, path, "weights", rawget(metric, "_own") or {}, named)
end

local function visit_optimizer(walk, path, optimizer)
  visit(walk, join(path, "iterations"), optimizer.iterations)
  if type(rawget(optimizer, "_rate")) == "number" then
    visit(walk, join(path, "learning_rate"), optimizer:rate_variable())
  end
  walk.optimizers[#walk.optimizers + 1] = { path = path, optimizer = optimizer }
end

--- As nest.keys; a number under "n" of a table without positions is a value.
local function keys_of(x)
  local keys = nest.keys(x)
  if type(x.n) == "number" and type(keys[1]) ~= "number" then
    keys[#keys + 1] = "n"
    table.sort(keys)
  end
  return keys
end

local function visit_plain(walk, path, x)
  walk.tables[path] = walk.depth == 0 and x or nil
  for _, key in ipairs(keys_of(x)) do
    if type(key) == "string" and key:find("\0", 1, true) then
      errors.raise("invalid_argument", "Checkpoint: the key %q has a zero byte, which no name in a checkpoint has", key)
    end
    visit(walk, join(path, M.key_text(key)), x[key], x, key)
  end
end

local function visit_object(walk, path, x)
  if class.is(x, Layer) then return visit_layer(walk, path, x) end
  if values.is_metric(x) then return visit_metric(walk, path, x) end
  if class.is(x, Optimizer) then return visit_optimizer(walk, path, x) end
  if rawget(x, "_fields") then return visit_fields(walk, path, x) end
  return refuse(walk, path, x)
end

local function visit_table(walk, path, x)
  if walk.seen[x] then
    walk.aliases[#walk.aliases + 1] = { path, walk.seen[x] }
    return
  end
  walk.seen[x] = path
  if values.is_variable(x) then
    if x.device == "/job:worker" then return refuse(walk, path, x, M.OF_WORKERS) end
    return leaf(walk, { name = path, kind = "variable", variable = x })
  end
  if x == random then return leaf(walk, { name = path, kind = "random" }) end
  if values.is_iterator(x) then return leaf(walk, { name = path, kind = "iterator", iterator = x }) end
  if values.is_symbol(x) then return refuse(walk, path, x) end
  local root = M.root_of(x)
  if root then return visit_plain(walk, path, root) end
  if getmetatable(x) == nil then return visit_plain(walk, path, x) end
  walk.depth = walk.depth + 1
  if walk.depth == 1 and not (rawget(x, "_fields")) then
    walk.depth = 0
    return refuse(walk, path, x)
  end
  visit_object(walk, path, x)
  walk.depth = walk.depth - 1
end

local plain = { number = true, string = true, boolean = true }

--- One level deeper; bounded, as the stack is.
local function go_down(walk, path, x)
  if walk.level >= DEEPEST then
    errors.raise("invalid_argument", 'Checkpoint: tables are nested more than %d deep at "%.60s..."', DEEPEST, path)
  end
  walk.level = walk.level + 1
  visit_table(walk, path, x)
  walk.level = walk.level - 1
end

function visit(walk, path, x, holder, key)
  if type(x) == "table" then return go_down(walk, path, x) end
  if walk.depth > 0 then return end
  if values.is_tensor(x) then
    leaf(walk, { name = path, kind = "tensor", holder = holder, key = key })
  elseif plain[type(x)] then
    leaf(walk, { name = path, kind = "value", holder = holder, key = key })
  else
    refuse(walk, path, x)
  end
end

--- Slots of an optimizer beside the variables of the checkpoint.
local function slots(walk, entry, variables)
  local ok, rule = pcall(entry.optimizer.rule, entry.optimizer)
  for _, v in ipairs(variables) do
    for _, slot in ipairs(ok and slots_of[rule] or {}) do
      if values.is_float(v.variable.dtype) then
        leaf(walk, { kind = "slot", optimizer = entry.optimizer, variable = v.variable, slot = slot,
          name = join(join(entry.path, "slots/" .. slot), v.name) })
      end
    end
  end
end

--- The table of a tm.train.Checkpoint; set by tidemill.train.checkpoint.
function M.root_of() end

--- Walk a plain table.
function M.walk(root)
  local walk = { leaves = {}, aliases = {}, seen = {}, tables = {}, optimizers = {}, depth = 0,
    level = 0 }
  walk.seen[root] = ""
  visit_plain(walk, "", root)
  local variables = {}
  for _, l in ipairs(walk.leaves) do
    if l.kind == "variable" then variables[#variables + 1] = l end
  end
  for _, entry in ipairs(walk.optimizers) do
    local own = { [entry.optimizer.iterations] = true }
    if type(rawget(entry.optimizer, "_rate")) == "number" then own[entry.optimizer:rate_variable()] = true end
    local others = {}
    for _, l in ipairs(variables) do
      if l.variable.trainable and not own[l.variable] then others[#others + 1] = l end
    end
    slots(walk, entry, others)
  end
  return walk
end

return M
