--- Methods that notice a dot where a colon belongs: x.name(a) gives them `a` as self.

local errors = require "tidemill.errors"

local M = {}

local function checked(class, name, method)
  return function(self, ...)
    if getmetatable(self) ~= class then
      errors.raise("invalid_argument", "%s is a method: call it with a colon, as in x:%s(...)", name, name)
    end
    return method(self, ...)
  end
end

--- Check self in all public methods of a class that objects have as metatable.
---@param class table    the metatable
---@param methods table  by name; may be the same table
function M.check(class, methods)
  for name, method in pairs(methods) do
    if type(method) == "function" and name:sub(1, 1) ~= "_" then methods[name] = checked(class, name, method) end
  end
end

return M
