--- Classes with computed properties.
---
---     local Point = class.new("Point")
---     function Point:init(x) self.x = x end
---     function Point.get:double() return 2 * self.x end
---     Point(3).double                        -- 6
---     local Child = Point:extend("Child")
---
--- Construction calls `setup` (for base classes: users need not call it) and then
--- `init`, both with the arguments.  Properties live in `Class.get` and `Class.set`;
--- one without a setter is read-only.  Objects keep the order in which their fields
--- were first set, so that walks over them give the same list on every run.

local errors = require "tidemill.errors"

local M = {}

local Base = { class_name = "Object", get = {}, set = {} }

local function construct(class, ...)
  local self = setmetatable({}, class)
  rawset(self, "_fields", {})
  rawset(self, "_given", { n = select("#", ...), ... }) -- for who saves it
  self:setup(...)
  self:init(...)
  return self
end

local function index(class)
  return function(self, key)
    local v = class[key]
    if v ~= nil then return v end
    local get = class.get[key]
    if get then return get(self) end
  end
end

local function newindex(class)
  return function(self, key, value)
    local set = class.set[key]
    if set then return set(self, value) end
    if class.get[key] then
      errors.raise("invalid_argument", "%s.%s can be read only", class.class_name, tostring(key))
    end
    local fields = rawget(self, "_fields")
    fields[#fields + 1] = key
    rawset(self, key, value)
  end
end

local metamethods = { "__tostring", "__call", "__len", "__add", "__sub", "__mul", "__div" }

--- Derive a class.
---@param name string
function Base:extend(name)
  if type(name) ~= "string" then
    errors.raise("invalid_argument", 'extend takes the name of the new class, as in %s:extend("Mine")',
      self.class_name)
  end
  local class = {
    class_name = name,
    parent = self,
    get = setmetatable({}, { __index = self.get }),
    set = setmetatable({}, { __index = self.set }),
  }
  for _, m in ipairs(metamethods) do class[m] = rawget(self, m) end
  class.__index = index(class)
  class.__newindex = newindex(class)
  class.__name = "tm." .. name
  return setmetatable(class, {
    __index = self,
    __call = construct,
    __tostring = function() return "class " .. name end,
  })
end

--- What it is, and its name where it has one.
function Base:__tostring()
  local name = rawget(self, "name")
  return name and ("%s %q"):format(self.class_name, name) or self.class_name
end

--- An object of this class as another one was (its get_config): Class:from_config(config).
function Base:from_config(config)
  local given = config.__arguments
  if given then return self((table.unpack or unpack)(given, 1, given.n or #given)) end
  if next(config) == nil then return self() end
  return self(config)
end

function Base.setup() end

function Base.init() end

--- Is this an object of a class, or of one derived from it?
function M.is(x, class)
  local c = type(x) == "table" and getmetatable(x) or nil
  while type(c) == "table" do
    if c == class then return true end
    c = rawget(c, "parent")
  end
  return false
end

--- Raise for a class that stands where an object of it is wanted.
---@param where string  for messages: "compile: optimizer"
function M.refuse(where, x)
  if type(x) == "table" and rawget(x, "class_name") and rawget(x, "parent") then
    errors.raise("invalid_argument", "%s is the class %s, not an object of it; write %s()", where, x.class_name,
      x.class_name)
  end
end

--- A class without a parent.
---@param name string
function M.new(name) return Base.extend(Base, name) end

return M
