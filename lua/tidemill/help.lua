--- tm.help: what the op table says of a function, and the source files of classes.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local tm = require "tidemill.lib.lazy"

local names = {} -- op name by function
for name, fn in pairs(core.ops) do names[fn] = name end

local groups = { "layers", "optimizers", "losses", "metrics", "callbacks" }
local internal = { describe = true, trace_iterator = true, spec_key = true, Spec = true, resumes = true,
  is_dataset = true }

-- --- what there is ---

local function is_class(x) return type(x) == "table" and rawget(x, "class_name") ~= nil end

--- Classes of a group by name.
local function classes(group)
  local t, out = tm[group], {}
  if group == "callbacks" then
    for _, name in ipairs(t.names()) do out[name] = t[name] end
    return out
  end
  for name, x in pairs(t) do
    if is_class(x) then out[name] = x end
  end
  return out
end

--- Functions of tm.data and methods of datasets by name.
local function data_functions()
  local out = {}
  for name, fn in pairs(tm.data._methods) do out["dataset:" .. name] = fn end
  for name, fn in pairs(tm.data) do
    if type(fn) == "function" and not internal[name] then out[name] = fn end
  end
  return out
end

local function op_names()
  local out = {}
  for name in pairs(core.ops) do
    if not core.op_info(name).hidden then out[name] = true end
  end
  return out
end

local function sorted(t)
  local list = {}
  for name in pairs(t) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- Names in lines of at most 100 columns.
local function wrapped(list)
  local lines, line = {}, " "
  for _, name in ipairs(list) do
    if #line + #name + 1 > 100 then lines[#lines + 1], line = line, " " end
    line = line .. " " .. name
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

local function overview()
  local parts = { 'tm.help "name" tells what one of these takes.' }
  local function add(title, t) parts[#parts + 1] = title .. "\n" .. wrapped(sorted(t)) end
  add("ops, tm.name", op_names())
  for _, group in ipairs(groups) do add(("tm.%s.Name"):format(group), classes(group)) end
  add("tm.data.name, and methods of a dataset", data_functions())
  return table.concat(parts, "\n\n")
end

-- --- one of them ---

--- The comment above a function in its file, where that can be read.
local function comment(fn)
  local info = type(fn) == "function" and debug.getinfo(fn, "S")
  local f = info and info.source:sub(1, 1) == "@" and io.open(info.source:sub(2))
  if not f then return "" end
  local found = {}
  for _ = 1, info.linedefined - 1 do
    local text = (f:read "*l" or ""):match "^%-%-%- ?(.*)$"
    if text and text:sub(1, 1) ~= "@" then found[#found + 1] = "  " .. text elseif not text then found = {} end
  end
  f:close()
  return #found > 0 and "\n" .. table.concat(found, "\n") or ""
end

local function nothing() end

--- Options as text: those without a default first.
local function options_text(known)
  local plain, set, seen = {}, {}, {}
  for k, v in pairs(known) do
    if type(k) == "string" then
      seen[k] = true
      set[#set + 1] = ("%s = %s"):format(k, type(v) == "string" and ("%q"):format(v)
        or type(v) == "table" and "{ ... }" or tostring(v))
    end
  end
  for k, v in pairs(known) do
    if type(k) == "number" and not seen[v] then plain[#plain + 1] = v end
  end
  table.sort(plain)
  table.sort(set)
  for _, s in ipairs(set) do plain[#plain + 1] = s end
  return table.concat(plain, ", ")
end

--- The options of a class, as options.read knows them; nil: it has none.
local function options_of(class)
  return options.asked(class, { name = "help" }) or options.asked(class, "path", {})
    or options.asked(class, nothing, {})
end

local function class_text(group, name, class)
  local known = options_of(class)
  return ("tm.%s.%s%s%s"):format(group, name, known and "{ " .. options_text(known) .. " }" or "()",
    comment(class.init))
end

local function function_text(name, fn)
  local known = not name:find ":" and options.asked(fn, { files = "a", images = "a" })
  return ("%s%s%s"):format(name:find ":" and name or "tm.data." .. name,
    known and "{ " .. options_text(known) .. " }" or "(...)", comment(fn))
end

--- Texts of all that has this name, or is this class.
local function texts_of(what)
  local out = {}
  local group, name
  if type(what) == "string" then
    what = what:gsub("^tm%.", "")
    group, name = what:match "^(%a+)%.([%w_]+)$"
    name = name or what
  end
  for _, g in ipairs(groups) do
    for n, class in pairs((not group or group == g) and classes(g) or {}) do
      if n == name or class == what then out[#out + 1] = class_text(g, n, class) end
    end
  end
  for n, fn in pairs((not group or group == "data") and data_functions() or {}) do
    if fn == what or (name and (n == name or n:match ":(.*)$" == name)) then out[#out + 1] = function_text(n, fn) end
  end
  table.sort(out)
  return out
end

local function unknown(what, name)
  local known = sorted(op_names())
  for _, group in ipairs(groups) do
    for n in pairs(classes(group)) do known[#known + 1] = n end
  end
  for n in pairs(data_functions()) do known[#known + 1] = n end
  local near = type(name) == "string" and options.nearest(name, known)
  errors.raise("not_found", "help: there is no %s%s", tostring(what),
    near and ('; did you mean "%s"?'):format(near) or "; tm.help() lists what there is")
end

--- help("matmul"), help("nn.relu"), help(tm.matmul), help("Dense"), help("csv"): usage and
--- meaning, as text; help(): all names.
---@param what? string|function|table
---@return string
return function(what)
  if what == nil then return overview() end
  local name = names[what] or (type(what) == "string" and what:gsub("^tm%.", "")) or nil
  local info = name and core.op_info(name)
  local parts = texts_of(what)
  if info and not info.hidden then table.insert(parts, 1, ("%s\n  %s"):format(info.usage, info.help)) end
  if #parts == 0 then unknown(what, name) end
  return table.concat(parts, "\n\n")
end
