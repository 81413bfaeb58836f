--- Option tables: defaults filled in, unknown names refused with the nearest one.

local class = require "tidemill.lib.class"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"

local M = {}

local LISTED = 16 -- names in a message, at most

local function distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local diagonal = row[0]
    row[0] = i
    for j = 1, #b do
      local cost = a:byte(i) == b:byte(j) and 0 or 1
      local best = math.min(row[j] + 1, row[j - 1] + 1, diagonal + cost)
      diagonal, row[j] = row[j], best
    end
  end
  return row[#b]
end

--- The name in the list that is most like `name`, nil when none is.
---@param name string
---@param names string[]
function M.nearest(name, names)
  local best, least
  local low = name:lower()
  for _, n in ipairs(names) do
    local d = distance(low, n:lower())
    if not least or d < least then best, least = n, d end
  end
  if least and least <= 1 then return best end
  for _, n in ipairs(names) do -- a shortened name: std of stddev, activ of activation
    if #low >= 3 and n:lower():sub(1, #low) == low then return n end
  end
  if least and least <= math.max(2, math.floor(#name / 2)) then return best end
end

--- Raise for a name that is not in the list: `what` says which thing it should be.
function M.unknown(where, what, name, names)
  local near = type(name) == "string" and M.nearest(name, names)
  local hint = ""
  if near then
    hint = ('; did you mean "%s"?'):format(near)
  elseif #names > 0 then
    hint = "; there are " .. table.concat(names, ", ", 1, math.min(#names, LISTED))
      .. (#names > LISTED and ", ..." or "")
  end
  errors.raise("invalid_argument", '%s: unknown %s "%s"%s', where, what, tostring(name), hint)
end

-- Set while somebody asks what options there are.
local asking
local Asked = {}

--- The options that make(...) reads first, as `known` of M.read; nil: it reads none.  Nothing
--- is made.
function M.asked(make, ...)
  asking = true
  local ok, e = pcall(make, ...)
  asking = nil
  return not ok and getmetatable(e) == Asked and e.known or nil
end

--- Read an option table.  `known` lists names without default and maps the others to
--- theirs: { "units", use_bias = true }.
---@param where string  for messages: "Dense"
---@param given table?
---@return table
function M.read(where, given, known)
  if asking then error(setmetatable({ known = known }, Asked), 0) end
  local out, has = {}, {}
  for k, v in pairs(known) do
    if type(k) == "number" then has[v] = true else has[k], out[k] = true, v end
  end
  if given == nil then return out end
  if type(given) ~= "table" or getmetatable(given) ~= nil then
    errors.raise("invalid_argument", "%s takes one table of options, got %s", where, kinds.a(given))
  end
  for k, v in pairs(given) do
    if not has[k] then
      if type(k) == "number" then
        errors.raise("invalid_argument", "%s: options have names, as in { name = value }; entry %s has none, it is %s",
          where, tostring(k), kinds.a(v))
      end
      local names = {}
      for n in pairs(has) do names[#names + 1] = n end
      table.sort(names)
      M.unknown(where, "option", k, names)
    end
    out[k] = v
  end
  return out
end

--- Raise unless the options that are true or false by default are either.
function M.flags(where, known, o)
  for k, v in pairs(known or {}) do
    if type(k) == "string" and type(v) == "boolean" then M.flag(where, k, o[k]) end
  end
end

--- Raise unless a name, where one is given, is text.
function M.name(where, x)
  if x ~= nil and (type(x) ~= "string" or x == "") then
    errors.raise("invalid_argument", "%s: name is a text, got %s", where, x == "" and "an empty one" or type(x))
  end
  return x
end

--- Raise unless the option is there.
function M.need(where, o, name)
  if o[name] == nil then
    errors.raise("invalid_argument", "%s needs the option %s", where, name)
  end
  return o[name]
end

--- A value as messages show it: text in quotes, so that "3" is not taken for 3.
local function shown(x)
  if type(x) == "string" then return ("%q"):format(x) end
  if x ~= x then return "nan" end
  return tostring(x)
end

local MOST = 2 ^ 53 -- beyond it numbers have gaps

--- Raise unless the value is a whole number of at least `least`.
function M.count(where, name, x, least)
  if type(x) ~= "number" or x ~= math.floor(x) or x < least or x > MOST then
    errors.raise("invalid_argument", "%s: %s must be a whole number of at least %d, got %s", where,
      name, least, shown(x))
  end
  return x
end

--- Raise unless the value is one of a list of strings.
function M.choice(where, name, x, list)
  for _, c in ipairs(list) do
    if x == c then return x end
  end
  return M.unknown(where, name, x, list)
end

--- Raise unless the value is true or false.
function M.flag(where, name, x)
  if type(x) ~= "boolean" then
    errors.raise("invalid_argument", "%s: %s must be true or false, got %s", where, name, shown(x))
  end
  return x
end

--- Raise unless the value is a function, or something that can be called.
function M.callable(where, name, x)
  local mt = type(x) == "table" and getmetatable(x)
  if type(x) ~= "function" and not (type(mt) == "table" and mt.__call) then
    errors.raise("invalid_argument", "%s: %s must be a function, got %s", where, name, kinds.a(x))
  end
  return x
end

--- Raise unless the value can be the name of a file or directory.
function M.path(where, name, x)
  if type(x) ~= "string" or x == "" then
    errors.raise("invalid_argument", "%s takes %s, got %s", where, name, x == "" and "an empty string" or kinds.a(x))
  end
  if x:find("\0", 1, true) then
    errors.raise("invalid_argument", "%s takes %s, and no path has a zero byte: %q", where, name, x)
  end
  return x
end

--- Raise unless the value is a number in [lo, hi].
function M.number(where, name, x, lo, hi)
  if type(x) ~= "number" or x ~= x or (lo and x < lo) or (hi and x > hi) then
    errors.raise("invalid_argument", "%s: %s must be a number%s, got %s", where, name,
      lo and hi and (" from %g to %g"):format(lo, hi) or lo and (" of at least %g"):format(lo) or "",
      shown(x))
  end
  return x
end

--- Make "glorot_uniform" of "GlorotUniform".
function M.snake(name)
  name = name:gsub("(%l)(%u)", "%1_%2"):gsub("([%u%d])(%u%l)", "%1_%2")
  return name:lower()
end

local function plain(name) return (name:lower():gsub("_", "")) end

--- A getter for named things: an object passes, a string is looked up by its class
--- name, in whatever case and with underscores or without.
---@param where string      "initializer"
---@param classes table     class by name
---@param aliases? table    class name by other names
---@param called? boolean   what is no name is a function, or can be called
function M.getter(where, classes, aliases, called)
  return function(x)
    if type(x) ~= "string" then
      class.refuse(where, x)
      if called and x then M.callable("tidemill", "a " .. where .. " that is no name", x) end
      return x
    end
    local found, names = aliases and classes[aliases[x]], {}
    for name, c in pairs(classes) do
      if plain(name) == plain(x) then found = c end
      names[#names + 1] = M.snake(name)
    end
    if found then return found() end
    for alias in pairs(aliases or {}) do names[#names + 1] = alias end
    table.sort(names)
    return M.unknown("tidemill", where, x, names)
  end
end

return M
