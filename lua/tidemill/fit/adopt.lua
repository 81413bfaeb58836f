--- Optimizers and metrics that were made outside of the strategy scope of their model move
--- there: what a step uses must live on the cluster that runs it.
---
--- Only what belongs to this process alone moves; a thing of another strategy stays, and
--- the first step tells so.

local nest = require "tidemill.lib.nest"
local place = require "tidemill.lib.place"
local values = require "tidemill.lib.values"

local M = {}

local function moves(thing, scope) return scope and not rawget(thing, "_scope") end

--- The same variable in another scope, with its value.
local function moved(v, scope, beside)
  return place.variable(scope, v:read(), { name = v.name, dtype = v.dtype, trainable = v.trainable },
    { unpartitioned = true, beside = beside })
end

--- An optimizer: its variables are made again, with their values.
function M.optimizer(optimizer, scope)
  if not moves(optimizer, scope) then return end
  rawset(optimizer, "_scope", scope)
  for _, name in ipairs { "_iterations", "_rate_variable" } do
    local v = rawget(optimizer, name)
    if v then rawset(optimizer, name, moved(v, scope)) end
  end
end

--- Put new variables where old ones were in the fields of an object.
local function replace(t, by, seen)
  seen[t] = true
  for k, x in pairs(t) do
    if by[x] then
      rawset(t, k, by[x])
    elseif type(x) == "table" and getmetatable(x) == nil and not seen[x] then
      replace(x, by, seen)
    elseif values.is_metric(x) and not seen[x] then
      M.metric(x, by.scope)
    end
  end
end

--- A metric: its state moves, with its values.
function M.metric(metric, scope)
  if not moves(metric, scope) then return end
  rawset(metric, "_scope", scope)
  local by, first = {}, nil
  for _, v in ipairs(metric.variables) do
    by[v] = moved(v, scope, first)
    first = first or by[v]
  end
  by.scope = scope
  replace(metric, by, {})
end

--- All metric objects in a structure of compile's.
function M.metrics(struct, scope)
  if values.is_metric(struct) then return M.metric(struct, scope) end
  if not nest.is_nested(struct) then return end
  for _, x in pairs(struct) do M.metrics(x, scope) end
end

--- What a model was compiled with, and the metrics that it holds.
function M.compiled(model, given)
  local scope = model._scope
  if not scope then return end
  M.optimizer(model.optimizer, scope)
  M.metrics(given.metrics, scope)
  M.metrics(given.weighted_metrics, scope)
  M.metrics(model.metrics, scope)
end

return M
