--- tm.metrics.Metric: state in variables, updated by adding.
---
---     local Largest = tm.metrics.Metric:extend("Largest")
---     function Largest:init() self.seen = self:add_weight{ name = "seen" } end
---     function Largest:update_state(y_true, y_pred, weights) ... end
---     function Largest:result() return self.seen:read() end
---
--- The variables of one metric sit on one ps, unpartitioned, so that they are read as
--- one version; they are made eagerly in the scope in which the metric was constructed,
--- also when that happens during a trace.  Updates only add: workers need no order.

local unpack = table.unpack or unpack
local class = require "tidemill.lib.class"
local errors = require "tidemill.errors"
local fits = require "tidemill.lib.fits"
local initializers = require "tidemill.initializers"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local place = require "tidemill.lib.place"
local tm = require "tidemill.lib.lazy"

local Metric = class.new("Metric")

Metric.is_metric = true

local used_names = {}

local function automatic_name(base)
  local n = used_names[base] or 0
  used_names[base] = n + 1
  return n == 0 and base or ("%s_%d"):format(base, n)
end

function Metric:setup(...)
  local given = ...
  local o = type(given) == "table" and getmetatable(given) == nil and given or {}
  rawset(self, "_scope", place.current() or false)
  rawset(self, "_own", {})
  rawset(self, "_made_of", nest.pack(...))
  options.name(self.class_name, o.name)
  rawset(self, "name", o.name or automatic_name(self.default_name or options.snake(self.class_name)))
  rawset(self, "_first_name", self.name) -- compile may give it another
end

--- The metric's own options, `name` and `dtype`, checked.
function Metric:options(given, known)
  local all = { "name" }
  for k, v in pairs(known or {}) do
    if type(k) == "number" then all[#all + 1] = v else all[k] = v end
  end
  local o = options.read(self.class_name, given, all)
  options.flags(self.class_name, known, o)
  return o
end

function Metric:init(given) self:options(given) end

--- What the metric was made with, under the name that it got.
function Metric:get_config()
  local given = self._given
  if given.n > 1 or (given.n == 1 and (type(given[1]) ~= "table" or getmetatable(given[1]))) then
    return { __arguments = given }
  end
  local config = { name = self._first_name }
  for k, v in pairs(given[1] or {}) do config[k] = v end
  return config
end

--- Add a variable of state: name, shape, dtype = "float32", initializer = "zeros".
function Metric:add_weight(given)
  local o = options.read("add_weight", given, { "name", shape = {}, dtype = "float32", initializer = "zeros" })
  local v = place.variable(self._scope, initializers.get(o.initializer), {
    name = ("%s/%s"):format(self.name, o.name or "state_" .. #self._own + 1),
    shape = o.shape, dtype = o.dtype, trainable = false,
  }, { unpartitioned = true, beside = self._own[1] })
  self._own[#self._own + 1] = v
  return v
end

--- Another of the same name and options in the same scope, with state of its own.
function Metric:copy()
  local made, of = self._made_of, getmetatable(self)
  local m = place.within(self._scope, function() return of(unpack(made, 1, made.n)) end)
  rawset(m, "name", self.name)
  return m
end

local late = {}

--- Is a metric to make its late variables, those for which it needs to see a batch?  What
--- an error or Ctrl-C left of them is forgotten.
function Metric:begin_late()
  if rawget(self, "_made") then return false end
  local early = rawget(self, "_early") or #self._own
  rawset(self, "_early", early)
  for i = #self._own, early + 1, -1 do self._own[i] = nil end
  return true
end

--- It has made them: a checkpoint may have values for them.
function Metric:made_late()
  rawset(self, "_made", true)
  for _, fn in ipairs(late) do fn(self) end
end

--- Call fn(metric) whenever that happens.
function Metric.when_late(fn) late[#late + 1] = fn end

function Metric:update_state()
  errors.raise("unimplemented", "%s has no method update_state(y_true, y_pred, weights)", self.class_name)
end

--- What the targets are to be beside the predictions (lib/fits.lua): metrics.lua says it of
--- classes; nil: whatever update_state takes.
function Metric:check_shapes(y_true, y_pred, output)
  if not self._targets then return end
  fits.check(output, self.class_name, self._targets, y_true, y_pred, self._other,
    rawget(self, "num_classes"))
end

function Metric:result()
  errors.raise("unimplemented", "%s has no method result()", self.class_name)
end

--- Back to the start: all state is zero.
function Metric:reset_states()
  for _, v in ipairs(self._own) do v:assign(tm.zeros(v.shape, v.dtype)) end
end

Metric.reset_state = Metric.reset_states

function Metric.get:variables() return self._own end

Metric.get.weights = Metric.get.variables

--- metric(y_true, y_pred): update, then the result.
function Metric.__call(self, ...)
  self:update_state(...)
  return self:result()
end

function Metric:__tostring() return ("%s %q"):format(self.class_name, self.name) end

return Metric
