--- Names of files with numbers in them: "runs/{epoch:02d}-{val_loss:.2f}".
---
---     format.path("ModelCheckpoint", "runs/{epoch:02d}", { epoch = 3 })       -- "runs/03"
---
--- What stands in braces is a name and, after a colon, how its number is written, as in
--- Python: "02d", ".3f", "8.2e"; "{{" and "}}" are braces.

local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"

local M = {}

local function plain(x)
  if type(x) == "number" and x == math.floor(x) and math.abs(x) < 2 ^ 53 then return ("%.0f"):format(x) end
  if type(x) == "number" then return ("%.15g"):format(x) end
  return tostring(x)
end

local function number_text(where, spec, x)
  local flags, width, precision, kind = spec:match "^([-+ 0]*)(%d*)(%.?%d*)([deEfFgGxXs%%]?)$"
  if not flags or #flags + #width + #precision > 8 or #precision == 1 then
    errors.raise("invalid_argument", '%s: "%s" is no way to write a number; there are 02d, .2f, .3e, g', where,
      spec)
  end
  local how = "%" .. flags .. width
  if type(x) ~= "number" then return (how .. "s"):format(tostring(x)) end
  if kind == "" and precision == "" then return (how .. "s"):format(plain(x)) end
  if kind == "d" or kind == "x" or kind == "X" then
    if x ~= math.floor(x) then
      errors.raise("invalid_argument", '%s: "%s" writes whole numbers, got %s; write it with .2f', where, spec,
        plain(x))
    end
    if kind == "d" then return (how .. ".0f"):format(x) end
    return (how .. kind):format(x)
  end
  if kind == "%" then return (how .. precision .. "f"):format(100 * x) .. "%" end
  if kind == "" or kind == "s" then kind = "g" end
  if kind == "F" then kind = "f" end
  return (how .. precision .. kind):format(x)
end

local function value_of(where, template, name, numbers)
  if numbers[name] ~= nil then return numbers[name] end
  local names = {}
  for n in pairs(numbers) do names[#names + 1] = tostring(n) end
  table.sort(names)
  local near = options.nearest(name, names)
  errors.raise("invalid_argument", '%s: "%s" asks for {%s}, which the logs do not have%s; there are %s', where,
    template, name, near and ('; did you mean {%s}?'):format(near) or "", table.concat(names, ", "))
end

--- A path from a template and numbers by name.
---@param where string  for messages
function M.path(where, template, numbers)
  local out, at = {}, 1
  while at <= #template do
    local from = template:find("[{}]", at)
    if not from then break end
    out[#out + 1] = template:sub(at, from - 1)
    local brace = template:sub(from, from)
    if template:sub(from + 1, from + 1) == brace then
      out[#out + 1], at = brace, from + 2
    else
      local name, spec, after = template:match("^{([%a_][^{}:]*):?([^{}]*)}()", from)
      if not name then
        errors.raise("invalid_argument", '%s: the braces of "%s" do not match; a brace itself is written twice', where,
          template)
      end
      local x = value_of(where, template, name, numbers)
      out[#out + 1], at = spec == "" and plain(x) or number_text(where, spec, x), after
    end
  end
  out[#out + 1] = template:sub(at)
  return table.concat(out)
end

--- Is the template well formed?  Its names, as a set.
function M.names(where, template)
  local names = {}
  M.path(where, template, setmetatable({}, { __index = function(_, name)
    names[name] = true
    return 1
  end }))
  return names
end

return M
