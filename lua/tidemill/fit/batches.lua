--- train_on_batch, test_on_batch, predict_on_batch: one step on what is given.

local compile = require "tidemill.fit.compile"
local errors = require "tidemill.errors"
local inputs = require "tidemill.fit.inputs"
local logs = require "tidemill.fit.logs"
local steps = require "tidemill.fit.steps"

local M = {}

local function eager(model)
  local c = rawget(model, "_compiled")
  return c ~= nil and c.given.run_eagerly
end

local function run(s, data)
  if eager(s.model) then return s:run(data) end
  return s.on_batch(data)
end

--- One step of "train" or "test"; the logs as Lua numbers, of this batch alone unless
--- reset_metrics is false.
function M.run(model, kind, x, y, given)
  local where = kind .. "_on_batch"
  local o = inputs.options(where, given, { "sample_weight", "class_weight", reset_metrics = true })
  compile.need(model, where)
  if x == nil then errors.raise("invalid_argument", "%s: the data are missing: %s(x, y, { ... })", where, where) end
  local s = steps.of(model, kind)
  inputs.check_batch(where, x)
  if o.reset_metrics then logs.reset(model) end
  return s:read(run(s, inputs.batch(model, where, x, y, o)))
end

--- The outputs for one batch.
function M.predict(model, x)
  inputs.check_batch("predict_on_batch", x)
  return run(steps.of(model, "predict"), inputs.batch(model, "predict_on_batch", x, nil, {}))
end

return M
