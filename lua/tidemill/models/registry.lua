--- Names of classes and functions in saved models.
---
---     tm.models.register(MyLayer)                       -- as "MyLayer"
---     tm.models.register(function(x) return x * 2 end, "double")
---
--- What tidemill has is known by its place, "layers.Dense"; what users made by the name
--- they registered, "custom.MyLayer", or gave in custom_objects.

local class = require "tidemill.lib.class"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local tm = require "tidemill.lib.lazy"

local M = {}

local CUSTOM = "custom."
local by_name, names = {}, setmetatable({}, { __mode = "k" })

local function is_class(x) return type(x) == "table" and rawget(x, "class_name") ~= nil end

--- register(class, name?) or register(function, name): gives it back.
function M.register(x, name)
  if type(x) ~= "function" and not is_class(x) then
    errors.raise("invalid_argument", "register takes a class (made by extend) or a function, got %s", kinds.a(x))
  end
  name = name or (type(x) == "table" and x.class_name or nil)
  if type(name) ~= "string" or name == "" then
    errors.raise("invalid_argument", 'register: a function needs a name, as in tm.models.register(fn, "double")')
  end
  by_name[name], names[x] = x, name
  return x
end

--- Where tidemill keeps classes and functions that a saved model may name.
local function places()
  return {
    { "layers", tm.layers }, { "initializers", tm.initializers }, { "regularizers", tm.regularizers },
    { "constraints", tm.constraints }, { "losses", tm.losses }, { "metrics", tm.metrics },
    { "optimizers", tm.optimizers }, { "schedules", tm.optimizers.schedules },
    { "activations", tm.activations }, { "nn", tm.nn },
    { "models", { Model = tm.Model, Sequential = tm.Sequential } },
  }
end

-- No function of a model: they look things up, or keep something.
local left_out = { get = true, link = true, logits = true, register = true }

local known, reverse

local function fill()
  known, reverse = {}, setmetatable({}, { __mode = "k" })
  for _, p in ipairs(places()) do
    local list = {}
    for k in pairs(p[2]) do list[#list + 1] = k end
    table.sort(list)
    for _, k in ipairs(list) do
      local x = p[2][k]
      if (type(x) == "function" or is_class(x)) and not left_out[k] then
        known[p[1] .. "." .. k] = x
        reverse[x] = reverse[x] or p[1] .. "." .. k
      end
    end
  end
end

--- The name under which a class or function is saved, nil: none.
function M.name_of(x, custom)
  if not known then fill() end
  for name, y in pairs(custom or {}) do
    if y == x then return CUSTOM .. name end
  end
  if names[x] then return CUSTOM .. names[x] end
  return reverse[x]
end

--- What has this name; raises where nothing has.  kind: "class" or "function".
function M.find(name, kind, custom)
  if not known then fill() end
  local own = name:sub(1, #CUSTOM) == CUSTOM and name:sub(#CUSTOM + 1)
  local x
  if own then
    x = custom and custom[own]
    if x == nil then x = by_name[own] end
  else
    x = known[name]
  end
  if x == nil and own then
    errors.raise("not_found", 'nobody registered "%s": tm.models.register(%s), or load(path, { custom_objects = '
      .. "{ %s = ... } })", own, kind == "function" and 'fn, "' .. own .. '"' or own, own)
  end
  if x == nil then errors.raise("not_found", 'tidemill has no %s "%s"', kind, name) end
  if (kind == "class") ~= is_class(x) or (kind == "function" and type(x) ~= "function") then
    errors.raise("invalid_argument", '"%s" is no %s', name, kind)
  end
  return x
end

--- custom_objects = { name = class or function }.
function M.check_custom(where, custom)
  if custom == nil then return nil end
  if type(custom) ~= "table" then
    errors.raise("invalid_argument", "%s: custom_objects is a table of classes and functions by name, got %s", where,
      kinds.a(custom))
  end
  for name, x in pairs(custom) do
    if type(name) ~= "string" or not (type(x) == "function" or is_class(x)) then
      errors.raise("invalid_argument", "%s: custom_objects[%s] is no class and no function", where, tostring(name))
    end
  end
  return custom
end

--- Is x an object of a class of lib/class?
function M.is_object(x)
  local mt = type(x) == "table" and getmetatable(x)
  return is_class(mt) and rawget(x, "_given") ~= nil
end

M.is_a = class.is

--- Is a class made by extend of another one, or of one that is?
function M.extends(c, parent)
  while type(c) == "table" do
    if c == parent then return true end
    c = rawget(c, "parent")
  end
  return false
end

return M
