--- tm.optimizers.Optimizer: gradients to updates.
---
--- What an optimizer computes runs on the parameter servers: a step sends, with each
--- gradient, the name of the rule, its numbers, the learning rate and the step number
--- (core/ps/rule.h); slots live beside the variable and are made at first use.  So all
--- rules share this file and differ by their table of options.
---
--- Invariants
---   (1) `iterations` counts applied steps; the step that is being applied has number
---       iterations + 1, read once and used for every variable.
---   (2) A gradient by rows reaches clipping and decay with each row once.

local class = require "tidemill.lib.class"
local kinds = require "tidemill.lib.kinds"
local clip = require "tidemill.optimizers.clip"
local constraints = require "tidemill.constraints"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local initializers = require "tidemill.initializers"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local rows = require "tidemill.optimizers.rows"
local schedules = require "tidemill.optimizers.schedules"
local trace = require "tidemill.trace"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local Optimizer = class.new("Optimizer")

--- Options that every optimizer takes.
local common = { "name", "clipnorm", "clipvalue", "global_clipnorm", "weight_decay" }

function Optimizer:setup()
  rawset(self, "_scope", place.current() or false)
  rawset(self, "uid", core.new_uid())
end

--- Read options: the rule's own (defaults by name) and the common ones.
function Optimizer:configure(given, known)
  local all = {}
  for k, v in pairs(known) do
    if type(k) == "number" then all[#all + 1] = v else all[k] = v end
  end
  for _, k in ipairs(common) do all[#all + 1] = k end
  local o = options.read(self.class_name, given, all)
  for _, k in ipairs { "clipnorm", "clipvalue", "global_clipnorm" } do
    if o[k] then options.number(self.class_name, k, o[k], 0) end
  end
  if o.clipnorm and o.global_clipnorm then
    errors.raise("invalid_argument",
      ("%s: clipnorm and global_clipnorm exclude each other"):format(self.class_name))
  end
  rawset(self, "options", o)
  rawset(self, "name", o.name or self.class_name:lower())
  self.learning_rate = o.learning_rate
end

--- Name of the rule and what it takes after the learning rate.
function Optimizer:rule()
  errors.raise("unimplemented", ("%s has no method rule()"):format(self.class_name))
end

-- --- iterations and learning rate ---

local function scalar(self, name, dtype, value)
  return place.variable(self._scope, initializers.Constant { value = value }, {
    name = ("%s/%s"):format(self.name, name), shape = {}, dtype = dtype, trainable = false,
  }, { unpartitioned = true })
end

--- The number of steps done, an int64 variable.
function Optimizer.get:iterations()
  local v = rawget(self, "_iterations")
  if not v then
    v = scalar(self, "iterations", "int64", 0)
    rawset(self, "_iterations", v)
  end
  return v
end

--- A number, or the schedule.  The variable holds a float32: while it is the one that was
--- set, the number is given as it was set.
function Optimizer.get:learning_rate()
  local v, rate = rawget(self, "_rate_variable"), rawget(self, "_rate")
  if not v then return rate end
  local now = place.eagerly(function() return v:read():item() end)
  return math.abs(now - rate) <= math.abs(rate) * 6e-8 and rate or now
end

function Optimizer.set:learning_rate(x)
  if values.is_tensor(x) then x = x:item() end
  if type(x) ~= "number" and not (schedules.is(x) or type(x) == "function") then
    errors.raise("invalid_argument",
      ("%s: learning_rate is a number or a schedule, got %s"):format(self.class_name, kinds.a(x)))
  end
  local v = rawget(self, "_rate_variable")
  rawset(self, "_rate", x)
  if type(x) ~= "number" then
    rawset(self, "_rate_variable", nil)
  elseif v then
    place.eagerly(function() v:assign(x) end)
  end
end

--- The variables that the optimizer itself has.
function Optimizer.get:variables()
  local out = { self.iterations }
  if type(rawget(self, "_rate")) == "number" then out[2] = self:rate_variable() end
  return out
end

--- The variable of a learning rate that is a number; settable while training.
function Optimizer:rate_variable()
  local v = rawget(self, "_rate_variable")
  if not v then
    v = scalar(self, "learning_rate", "float32", self._rate)
    rawset(self, "_rate_variable", v)
  end
  return v
end

--- The rate of the step after `done` steps, a float scalar.
local function current_rate(self, done)
  if type(self._rate) == "number" then return self:rate_variable():read() end
  return values.tensor(self._rate(done), "float32")
end

-- --- gradients ---

--- Two lists, or one of pairs { gradient, variable }.
local function pairs_of(self, grads, vars)
  local g, v = {}, vars
  if vars == nil then
    v = {}
    for i, pair in ipairs(grads) do g[i], v[i] = pair[1], pair[2] end
  else
    if type(grads) ~= "table" or type(vars) ~= "table" then
      errors.raise("invalid_argument", ("%s: apply_gradients takes a list of gradients and a list of variables")
        :format(self.class_name))
    end
    local n = math.max(rawget(grads, "n") or 0, #grads)
    if n > #vars then
      errors.raise("invalid_argument",
        ("%s: %d gradients for %d variables"):format(self.class_name, n, #vars))
    end
    for i = 1, #vars do g[i] = grads[i] end
  end
  local any = false
  for i, var in ipairs(v) do
    if not values.is_variable(var) then
      errors.raise("invalid_argument",
        ("%s: entry %d of the variables is no variable"):format(self.class_name, i))
    end
    any = any or g[i] ~= nil
  end
  if not any then
    errors.raise("invalid_argument", ("%s: no variable has a gradient; does the loss depend on them?")
      :format(self.class_name))
  end
  return g, v
end

local function clipped(self, g, n)
  local o = self.options
  if not (o.clipnorm or o.clipvalue or o.global_clipnorm or o.weight_decay) then return g end
  local out = {}
  for i = 1, n do out[i] = g[i] and (rows.is(g[i]) and rows.summed(g[i]) or g[i]) end
  if o.global_clipnorm then out = clip.by_global_norm(out, n, o.global_clipnorm) end
  for i = 1, n do
    if out[i] and o.clipnorm then out[i] = clip.by_norm(out[i], o.clipnorm) end
    if out[i] and o.clipvalue then out[i] = clip.by_value(out[i], o.clipvalue) end
  end
  return out
end

--- Decoupled decay: the variable (or the touched rows) shrinks by rate * weight_decay.
local function decay(self, g, v, rate)
  local by = rate * self.options.weight_decay
  if rows.is(g) then
    local x = v:sparse_read(g.indices)
    v:_scatter_sub_once(g.indices, x * values.cast(by, x.dtype))
  else
    local x = v:read()
    v:_sub_once(x * values.cast(by, x.dtype))
  end
end

--- Does the rule decay by itself?
Optimizer.decays = false

local function apply_gradients(self, grads, vars)
  local g, v = pairs_of(self, grads, vars)
  g = clipped(self, g, #v)
  local done = self.iterations:read()
  local rate, t = current_rate(self, done), done + 1
  local rule, hyper = self:rule()
  for i, var in ipairs(v) do
    if g[i] then
      if self.options.weight_decay and not self.decays then decay(self, g[i], var, rate) end
      var:_apply(rule, self.uid, g[i], rate, t, hyper)
      local constraint = constraints.of(var)
      if constraint then var:assign(constraint(var)) end
    end
  end
  self.iterations:_add_once(1)
end

--- Apply gradients: a list of them and a list of variables, or a list of pairs.  A
--- missing gradient leaves its variable alone.
function Optimizer:apply_gradients(grads, vars) return trace.named(self.name, apply_gradients, self, grads, vars) end

--- One step on the loss that fn() computes.
function Optimizer:minimize(fn, vars)
  if type(fn) ~= "function" then
    errors.raise("invalid_argument",
      ("%s: minimize takes a function that computes the loss"):format(self.class_name))
  end
  local tape = tm.GradientTape()
  local loss = fn()
  self:apply_gradients(tape:gradient(loss, vars), vars)
  return loss
end

--- A slot of a variable, as a tensor: get_slot(v, "momentum").
function Optimizer:get_slot(var, name) return var:_slot(self.uid, name) end

--- All options, with the learning rate that it has now.
function Optimizer:get_config()
  local config = {}
  for k, v in pairs(self.options) do config[k] = v end
  config.name, config.learning_rate = self.name, self.learning_rate
  return config
end

function Optimizer:__tostring() return ("%s %q"):format(self.class_name, self.name) end

return Optimizer
