--- What steps log, as Lua numbers; metrics set back to the start.
---
--- Metrics are read by one traced function and reset by another: on a cluster that is one
--- request a ps each.  Both are traced anew when metrics come or get their variables.

local nest = require "tidemill.lib.nest"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local function number(x)
  if values.is_variable(x) then x = x:read() end
  if values.is_tensor(x) and x.rank == 0 then return x:item() end
  return x
end

local function results(list)
  local out = {}
  for i, m in ipairs(list) do out[i] = m:result() end
  return out
end

--- Variables of metrics: some make theirs when they see the first batch.
local function variables_of(list)
  local n = 0
  for _, m in ipairs(list) do n = n + #m.variables end
  return n
end

--- Results of metrics, in one go; results that cannot be traced are asked one by one.
local function read_all(self, list)
  local variables = variables_of(list)
  if not self.reader or #self.read_list ~= #list or self.read_variables ~= variables then
    self.read_list, self.read_variables = list, variables
    self.reader = tm.func(function() return results(list) end, { name = "read_metrics" })
  end
  if self.eager_reader then return results(list) end
  local ok, r = pcall(self.reader)
  if ok then return r end
  self.eager_reader = self.reader.trace_count == 0
  if not self.eager_reader then error(r, 0) end
  return results(list)
end

--- What steps log, as Lua numbers by name; `last` are the newest step's own tensors.
--- A metric with several results is each of them.
function M.read(self, last)
  local list, names, out = {}, {}, {}
  for _, name in ipairs(self.names) do
    if self.metrics[name] then
      list[#list + 1], names[#names + 1] = self.metrics[name], name
    elseif last and last[name] ~= nil then
      out[name] = number(last[name])
    end
  end
  if #list == 0 then return out end
  local got = read_all(self, list)
  for i, name in ipairs(names) do
    if nest.is_nested(got[i]) then
      for k, v in pairs(got[i]) do out[k] = number(v) end
    else
      out[name] = number(got[i])
    end
  end
  return out
end

local function same(a, b)
  if #a ~= #b then return false end
  for i, x in ipairs(a) do
    if b[i] ~= x then return false end
  end
  return true
end

--- Set the metrics of a model back to the start, in one go.
function M.reset(model)
  local list, c = model.metrics, rawget(model, "_compiled")
  for _, m in ipairs(c and c:early() or {}) do list[#list + 1] = m end
  local kept = rawget(model, "_reset")
  if not kept or not same(kept.list, list) or kept.variables ~= variables_of(list) then
    local plain, own = {}, {}
    for _, m in ipairs(list) do
      local base = m.reset_states == tm.metrics.Metric.reset_states
      table.insert(base and plain or own, m)
    end
    kept = { list = list, own = own, variables = variables_of(list), fn = tm.func(function()
      for _, m in ipairs(plain) do m:reset_states() end
    end, { name = "reset_metrics" }) }
    kept.any = #plain > 0
    rawset(model, "_reset", kept)
  end
  if kept.any then kept.fn() end
  for _, m in ipairs(kept.own) do m:reset_states() end
end

--- Logs that are fetched when somebody looks into them.
function M.lazy(fetch)
  local function load(t)
    setmetatable(t, nil)
    for k, v in pairs(fetch()) do t[k] = v end
    return t
  end
  return setmetatable({}, {
    __index = function(t, k) return load(t)[k] end,
    __pairs = function(t) return pairs(load(t)) end,
  })
end

return M
