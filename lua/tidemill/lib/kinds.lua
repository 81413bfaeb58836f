--- What a value is, in the words of messages: "tensor", "Dense layer", "table", "nil".
---
--- type(x) says "userdata" and "table" of what users know as tensors and datasets.

local core = require "tidemill.core"

local M = {}

local marks = {
  { "__tm_variable", "variable" }, { "__tm_symbol", "tm.Input" }, { "__tm_iterator", "iterator" },
  { "__tm_per_worker", "per-worker iterator" },
}

local by_name = {
  ["tm.data.Dataset"] = "dataset", ["tm.data.DatasetCreator"] = "tm.data.DatasetCreator",
  ["tm.PerWorkerDataset"] = "per-worker dataset", ["tm.Function"] = "traced function",
  ["tm.RemoteValue"] = "remote value", ["tm.ClusterCoordinator"] = "coordinator", ["tm.History"] = "history",
  ["tm.Error"] = "error object",
}

local families = {
  Model = "model", Layer = "layer", Metric = "metric", Loss = "loss", Optimizer = "optimizer", Callback = "callback",
}

--- "Dense layer" of an object of a class, however far it was derived.
local function of_class(class)
  local c = class
  while type(c) == "table" do
    local family = families[rawget(c, "class_name")]
    if family then return (c == class and "" or class.class_name .. " ") .. family end
    c = rawget(c, "parent")
  end
  return class.class_name
end

--- The kind of a value, without an article.
function M.of(x)
  local t = type(x)
  if t ~= "table" and t ~= "userdata" then return t end
  if core.is_tensor(x) then return "tensor" end
  local mt = getmetatable(x)
  if type(mt) ~= "table" then return t end
  if t == "table" and rawget(x, "class_name") and rawget(x, "parent") then return "class " .. x.class_name end
  for _, m in ipairs(marks) do
    if rawget(mt, m[1]) then return m[2] end
  end
  if rawget(mt, "class_name") then return of_class(mt) end
  local name = rawget(mt, "__name")
  return by_name[name] or (type(name) == "string" and name:match "^tm%." and name) or t
end

--- The same with its article: "a tensor", "an iterator"; nil is nil.
function M.a(x)
  local kind = M.of(x)
  if kind == "nil" then return kind end
  if kind:match "^class " then return "the " .. kind end
  return (kind:match "^[aeiouAEIO]" and "an " or "a ") .. kind
end

return M
