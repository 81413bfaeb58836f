--- tm.optimizers.schedules: learning rates as functions of the step number.
---
--- A schedule is called with the number of steps done (an integer tensor or a number)
--- and gives a float32 scalar; inside a step it joins the trace, so it makes no variable
--- and no traffic beyond the optimizer's `iterations`.

local class = require "tidemill.lib.class"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

---@class tm.optimizers.schedules.Schedule
local Schedule = class.new("LearningRateSchedule")
M.LearningRateSchedule = Schedule

--- The rate at a float32 scalar `step`; classes of your own override it.
function Schedule:rate()
  errors.raise("unimplemented", ("%s has no method rate(step)"):format(self.class_name))
end

function Schedule.__call(self, step)
  return values.tensor(self:rate(values.cast(values.tensor(step, "float32"), "float32")), "float32")
end

local function define(name, known, needed)
  local c = Schedule:extend(name)
  function c:init(given)
    local o = options.read(name, given, known)
    for _, n in ipairs(needed) do options.need(name, o, n) end
    for k, v in pairs(o) do self[k] = v end
  end
  M[name] = c
  return c
end

local function list(...)
  local out = {}
  for _, group in ipairs { ... } do
    for k, v in pairs(group) do
      if type(k) == "number" then out[#out + 1] = v else out[k] = v end
    end
  end
  return out
end

--- initial * decay_rate ^ (step / decay_steps); staircase: whole periods only.
local decaying = { "initial_learning_rate", "decay_steps", "decay_rate" }
local Exponential = define("ExponentialDecay", list(decaying, { staircase = false }), decaying)

local function periods(self, step)
  local p = step / self.decay_steps
  return self.staircase and tm.floor(p) or p
end

function Exponential:rate(step)
  return self.initial_learning_rate * tm.pow(tm.tensor(self.decay_rate), periods(self, step))
end

--- initial / (1 + decay_rate * step / decay_steps)
local Inverse = define("InverseTimeDecay", list(decaying, { staircase = false }), decaying)

function Inverse:rate(step)
  return tm.tensor(self.initial_learning_rate) / (1 + self.decay_rate * periods(self, step))
end

--- values[k] up to and with boundaries[k], the last value beyond.
local Piecewise = define("PiecewiseConstantDecay", { "boundaries", "values" }, { "boundaries", "values" })

local piecewise_init = Piecewise.init

function Piecewise:init(given)
  piecewise_init(self, given)
  if #self.values ~= #self.boundaries + 1 then
    errors.raise("invalid_argument", ("PiecewiseConstantDecay: %d boundaries need %d values, got %d")
      :format(#self.boundaries, #self.boundaries + 1, #self.values))
  end
end

function Piecewise:rate(step)
  local rate = tm.tensor(self.values[#self.values])
  for k = #self.boundaries, 1, -1 do
    rate = tm.where(tm.less_equal(step, self.boundaries[k]), tm.tensor(self.values[k]), rate)
  end
  return rate
end

--- From initial to end_learning_rate along a power; `cycle` starts over, longer.
local Polynomial = define("PolynomialDecay",
  { "initial_learning_rate", "decay_steps", end_learning_rate = 0.0001, power = 1, cycle = false },
  { "initial_learning_rate", "decay_steps" })

function Polynomial:rate(step)
  local span = tm.tensor(self.decay_steps)
  if self.cycle then
    span = span * tm.maximum(tm.ceil(step / self.decay_steps), 1)
  else
    step = tm.minimum(step, self.decay_steps)
  end
  local left = tm.pow(1 - step / span, tm.tensor(self.power))
  return (self.initial_learning_rate - self.end_learning_rate) * left + self.end_learning_rate
end

--- Half a cosine from initial to alpha * initial, after a linear warm-up from initial to
--- warmup_target when that is given.
local Cosine = define("CosineDecay",
  { "initial_learning_rate", "decay_steps", "warmup_target", alpha = 0, warmup_steps = 0 },
  { "initial_learning_rate", "decay_steps" })

local function half_cosine(self, step, from)
  local done = tm.minimum(step, self.decay_steps) / self.decay_steps
  local cosine = 0.5 * (1 + tm.cos(math.pi * done))
  return ((1 - self.alpha) * cosine + self.alpha) * from
end

function Cosine:rate(step)
  if not self.warmup_target then return half_cosine(self, step, self.initial_learning_rate) end
  local rise = self.warmup_target - self.initial_learning_rate
  local warm = rise * (step / math.max(1, self.warmup_steps)) + self.initial_learning_rate
  local after = half_cosine(self, step - self.warmup_steps, self.warmup_target)
  return tm.where(tm.less(step, self.warmup_steps), warm, after)
end

--- Is x one of these?
function M.is(x) return class.is(x, Schedule) end

return M
