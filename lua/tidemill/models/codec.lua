--- Values of configurations as JSON can hold them, and back.
---
--- Plain values stay as they are.  Everything else is a table whose field "$" says what
--- it is:
---
---     { "$": "object", class, config }         an initializer, a loss, a schedule ...
---     { "$": "function", name }   { "$": "layer", id }   { "$": "variable", id }
---     { "$": "symbol", node, out }   { "$": "spec", shape, dtype }
---     { "$": "tensor", dtype, shape, values }   { "$": "number", text }   { "$": "bytes", hex }
---     { "$": "table", keys, values, n }        what no JSON array or object is
---     { "$": "lost", what }                    a function that has no name
---
--- A context has the methods that know about layers, variables and symbols; `where` says
--- for messages what is being saved.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local func = require "tidemill.func"
local nest = require "tidemill.lib.nest"
local registry = require "tidemill.models.registry"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local MOST = 65536 -- elements of a tensor in a description

local TAG = "$"

-- --- to JSON ---

local encode

local function number(x)
  if x ~= x then return { [TAG] = "number", text = "nan" } end
  if x == math.huge then return { [TAG] = "number", text = "inf" } end
  if x == -math.huge then return { [TAG] = "number", text = "-inf" } end
  return x
end

local function text(x)
  if core.json_encode(x) and not x:find("\0", 1, true) then return x end
  return { [TAG] = "bytes", hex = (x:gsub(".", function(c) return ("%02x"):format(c:byte()) end)) }
end

local function tensor(ctx, x)
  if x:size() > MOST then
    errors.raise("invalid_argument", "%s holds a tensor of %d elements; make it a variable (add_weight), so that it "
      .. "is saved among the weights", ctx.where, x:size())
  end
  local list = {}
  local flat = nest.flatten(x:totable())
  for i, v in ipairs(flat) do list[i] = encode(ctx, v) end
  return { [TAG] = "tensor", dtype = x.dtype, shape = x.shape, values = list }
end

--- A JSON array or object where it is one, else keys and values.
local function plain(ctx, x)
  local keys = nest.keys(x)
  local list, names = true, true
  for i, k in ipairs(keys) do
    list = list and k == i
    names = names and type(k) == "string" and k ~= TAG
  end
  if type(x.n) == "number" then list, names = false, false end
  local out = {}
  if list or names then
    for _, k in ipairs(keys) do out[k] = encode(ctx, x[k]) end
    return out
  end
  out = { [TAG] = "table", keys = {}, values = {}, n = type(x.n) == "number" and x.n or nil }
  for i, k in ipairs(keys) do out.keys[i], out.values[i] = k, encode(ctx, x[k]) end
  return out
end

local function lost(ctx, what, remedy)
  if ctx.lost then
    ctx.lost[#ctx.lost + 1] = ctx.where
    return { [TAG] = "lost", what = what }
  end
  return errors.raise("invalid_argument", "%s is %s, which a file cannot hold; %s", ctx.where, what, remedy)
end

local function object(ctx, x)
  local class = getmetatable(x)
  local name = registry.name_of(class, ctx.custom)
  if not name then
    return lost(ctx, ("of the class %s"):format(class.class_name),
      ("tm.models.register(%s) makes it known, before it is saved and before it is loaded"):format(class.class_name))
  end
  return { [TAG] = "object", class = name, config = encode(ctx, M.config_of(x)) }
end

local function with_where(ctx, where, fn)
  local before = ctx.where
  ctx.where = where
  local out = fn()
  ctx.where = before
  return out
end

--- What an object's class is to be called with: get_config, or what it was made with.
function M.config_of(x)
  if type(x.get_config) == "function" then return x:get_config() end
  local given = rawget(x, "_given")
  if given.n == 0 then return {} end
  if given.n == 1 and nest.is_nested(given[1]) then
    local config = {}
    for k, v in pairs(given[1]) do config[k] = v end
    return config
  end
  return { __arguments = given }
end

function encode(ctx, x)
  local t = type(x)
  if t == "number" then return number(x) end
  if t == "string" then return text(x) end
  if t == "boolean" then return x end
  if x == nil then return { [TAG] = "nil" } end
  if t == "function" then
    local name = registry.name_of(x, ctx.custom)
    if name then return { [TAG] = "function", name = name } end
    return lost(ctx, "a function", 'tm.models.register(fn, "a name") makes it known, before it is saved and before it '
      .. "is loaded")
  end
  if values.is_tensor(x) then return tensor(ctx, x) end
  if values.is_symbol(x) then return ctx:symbol(x) end
  if values.is_variable(x) then return ctx:variable(x) end
  if func.is_placeholder(x) then return { [TAG] = "spec", shape = x.shape, dtype = x.dtype } end
  if registry.is_object(x) then
    if registry.is_a(x, tm.layers.Layer) then return ctx:layer(x) end
    return object(ctx, x)
  end
  if nest.is_nested(x) then
    local out
    for k, v in pairs(x) do
      if type(v) == "function" or (type(v) == "table" and getmetatable(v)) then
        out = with_where(ctx, ("%s.%s"):format(ctx.where, tostring(k)), function() return plain(ctx, x) end)
        break
      end
    end
    return out or plain(ctx, x)
  end
  return lost(ctx, "a " .. (t == "table" and (getmetatable(x).__name or "table") or t), "leave it out of the "
    .. "configuration")
end
M.encode = encode

-- --- from JSON ---

local decode

local function bad(ctx, ...)
  errors.raise("data_loss", "%s: malformed description: %s", ctx.where, (...):format(select(2, ...)))
end

local function need(ctx, x, field, kind)
  if type(x[field]) ~= kind then bad(ctx, '"%s" is no %s', field, kind) end
  return x[field]
end

--- A list of whole numbers of at least `least`.
function M.shape(ctx, shape, least)
  if type(shape) ~= "table" or #shape > 32 then bad(ctx, "a shape is a list of sizes") end
  for _, n in ipairs(shape) do
    if type(n) ~= "number" or n ~= math.floor(n) or n < least or n > 2 ^ 53 then bad(ctx, "a size of a shape") end
  end
  return shape
end

local numbers = { nan = 0 / 0, inf = math.huge, ["-inf"] = -math.huge }

local tagged = {}

tagged["nil"] = function() return nil end

function tagged.number(ctx, x) return numbers[x.text] or bad(ctx, "a number") end

function tagged.bytes(ctx, x)
  return (need(ctx, x, "hex", "string"):gsub("%x%x", function(h) return string.char(tonumber(h, 16)) end))
end

function tagged.tensor(ctx, x)
  local shape, list = M.shape(ctx, x.shape, 0), need(ctx, x, "values", "table")
  if #list ~= values.count(shape) or #list > MOST then bad(ctx, "a tensor with %d values", #list) end
  local flat = {}
  for i, v in ipairs(list) do flat[i] = decode(ctx, v) end
  local dtype = need(ctx, x, "dtype", "string")
  if #flat == 0 then return tm.zeros(shape, dtype) end
  return tm.reshape(tm.tensor(flat, dtype), shape)
end

tagged["function"] = function(ctx, x) return registry.find(need(ctx, x, "name", "string"), "function", ctx.custom) end

function tagged.layer(ctx, x) return ctx:layer(need(ctx, x, "id", "number")) end

function tagged.variable(ctx, x) return ctx:variable(need(ctx, x, "id", "number")) end

function tagged.symbol(ctx, x) return ctx:symbol(need(ctx, x, "node", "number"), need(ctx, x, "out", "number")) end

function tagged.spec(ctx, x)
  return func.placeholder { shape = M.shape(ctx, x.shape, -1), dtype = need(ctx, x, "dtype", "string") }
end

function tagged.lost(ctx, x)
  if ctx.lost then ctx.lost[#ctx.lost + 1] = tostring(x.what) end
  return nil
end

tagged["table"] = function(ctx, x)
  local out, keys, list = {}, need(ctx, x, "keys", "table"), need(ctx, x, "values", "table")
  for i, k in ipairs(keys) do
    if type(k) ~= "string" and type(k) ~= "number" then bad(ctx, "a key of a table") end
    out[k] = decode(ctx, list[i])
  end
  if x.n ~= nil then out.n = need(ctx, x, "n", "number") end
  return out
end

--- An object of a class that takes a configuration.
function M.build(ctx, name, config)
  local class = registry.find(name, "class", ctx.custom)
  if type(config) ~= "table" then bad(ctx, "a configuration that is no table") end
  if config.__arguments ~= nil and type(config.__arguments) ~= "table" then bad(ctx, "arguments of a class") end
  return class:from_config(config)
end

function tagged.object(ctx, x)
  return M.build(ctx, need(ctx, x, "class", "string"), decode(ctx, x.config))
end

function decode(ctx, x)
  if type(x) ~= "table" then return x end
  local tag = x[TAG]
  if tag ~= nil then
    local fn = type(tag) == "string" and tagged[tag]
    if not fn then bad(ctx, "a thing of the kind %q", tostring(tag)) end
    return fn(ctx, x)
  end
  local out = {}
  for k, v in pairs(x) do out[k] = decode(ctx, v) end
  return out
end
M.decode, M.bad = decode, bad

return M
