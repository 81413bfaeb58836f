--- The callbacks of one fit, evaluate or predict, called one after another.
---
---     local callbacks = list.new({ early, { on_epoch_end = f } }, model, { epochs = 3 })
---     callbacks:call("on_epoch_end", epoch, logs)
---     if callbacks:wants_batches("train") then ... end
---     callbacks:close()                       -- in any case, also after an error
---
--- Invariants
---   (1) Callbacks are called in the order of the list, each with itself first; those that
---       save what all others have made of a hook (`_last`) come after them.
---   (2) `logs` is passed on as it came: nobody looks into it here, so a table that
---       fetches when it is looked into stays unfetched.
---   (3) An error of a callback goes out of `call` as it was raised.

local Callback = require "tidemill.callbacks.callback"
local class = require "tidemill.lib.class"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"

local M = {}

---@class tm.callbacks.List
local List = {}
List.__index = List

--- What stands in for the hooks of train batches where a callback lacks them.
local instead = { on_train_batch_begin = "on_batch_begin", on_train_batch_end = "on_batch_end" }

local known, methods = {}, { "set_model", "set_params", "get_state", "set_state" }
for _, hook in ipairs(Callback.hooks) do
  known[hook], methods[#methods + 1] = true, hook
end

--- Do the keys of a table, class or object name hooks?  A misspelt one is told once.
local function check_names(t, what)
  for key in pairs(t) do
    if type(key) == "string" and key:sub(1, 3) == "on_" and not known[key] then
      local near = options.nearest(key, Callback.hooks)
      core.log("warn", ('callbacks: %s has a method "%s", which nothing calls%s'):format(what, key,
        near and ('; did you mean "%s"?'):format(near) or ""))
    end
  end
end

local function is_one(x)
  if getmetatable(x) ~= nil then return true end
  for key in pairs(x) do
    if type(key) == "string" then return true end
  end
  return false
end

local function check(cb, where)
  if type(cb) ~= "table" then
    errors.raise("invalid_argument", "callbacks: %s is no callback but %s; a table with methods such as on_epoch_end "
      .. "is one", where, kinds.a(cb))
  end
  class.refuse("callbacks: " .. where, cb)
  for _, name in ipairs(methods) do
    if cb[name] then options.callable("callbacks", where .. "." .. name, cb[name]) end
  end
  if class.is(cb, Callback) then
    local c = getmetatable(cb)
    while c ~= Callback do
      check_names(c, c.class_name)
      c = rawget(c, "parent")
    end
    check_names(cb, tostring(cb))
  else
    check_names(cb, where)
  end
end

--- Lists in lists are one list.
local function gather(x, out, where, depth)
  if type(x) ~= "table" or is_one(x) then
    check(x, where)
    out[#out + 1] = x
    return
  end
  depth = nest.deeper(depth)
  for i, cb in ipairs(x) do gather(cb, out, ("%s[%d]"):format(where, i), depth) end
end

--- A list for this model; params: { epochs, steps, verbose }.
---@param callbacks? table  one callback, or a list of them
function M.new(callbacks, model, params)
  local self = setmetatable({ callbacks = {}, model = model, params = params or {} }, List)
  if callbacks ~= nil then gather(callbacks, self.callbacks, "callbacks") end
  for _, cb in ipairs(self.callbacks) do self:_introduce(cb) end
  return self
end

function List:_introduce(cb)
  if cb.set_model then cb:set_model(self.model) else cb.model = self.model end
  if cb.set_params then cb:set_params(self.params) else cb.params = self.params end
end

--- One more, last or at a place in the list.
function List:add(cb, at)
  check(cb, "the callback")
  table.insert(self.callbacks, at or #self.callbacks + 1, cb)
  self:_introduce(cb)
  return cb
end

--- The first callback of a class, nil when there is none.
function List:find(of)
  for _, cb in ipairs(self.callbacks) do
    if class.is(cb, of) then return cb end
  end
end

local function method(cb, hook)
  local fn = Callback.hook_of(cb, hook)
  if not fn and instead[hook] then fn = Callback.hook_of(cb, instead[hook]) end
  return fn
end

local function is_last(cb) return class.is(cb, Callback) and cb._last == true end

local function call(self, last, hook, ...)
  for _, cb in ipairs(self.callbacks) do
    local fn = method(cb, hook)
    if fn and is_last(cb) == last then fn(cb, ...) end
  end
end

--- Call a hook of all: call("on_epoch_end", epoch, logs).
function List:call(hook, ...)
  call(self, false, hook, ...)
  call(self, true, hook, ...)
end

--- Has some callback a hook?
function List:has(hook)
  for _, cb in ipairs(self.callbacks) do
    if method(cb, hook) then return true end
  end
  return false
end

--- Does some callback look at batches?
---@param kind "train" | "test" | "predict"
function List:wants_batches(kind)
  return self:has(("on_%s_batch_begin"):format(kind)) or self:has(("on_%s_batch_end"):format(kind))
end

--- The batch of this epoch after which some callback wants to find nothing started that
--- is later; nil: none does.
function List:barrier()
  local least
  for _, cb in ipairs(self.callbacks) do
    local at = class.is(cb, Callback) and cb._barrier and cb:_barrier()
    if at and (not least or at < least) then least = at end
  end
  return least
end

--- A barrier is reached, or the end of the epoch: those that wait for it may save.
function List:reached(batch, logs)
  for _, last in ipairs { false, true } do
    for _, cb in ipairs(self.callbacks) do
      local waits = is_last(cb) == last and class.is(cb, Callback) and cb._barrier and cb:_barrier()
      if waits then cb:_reached(batch, logs) end
    end
  end
end

--- Between two looks at batches: callbacks do what cannot wait for a hook.
function List:heed()
  for _, cb in ipairs(self.callbacks) do
    if rawget(cb, "_urgent") and is_last(cb) then cb:_heed() end
  end
end

--- What a callback is called among the states: its place and class.
local function state_name(i, cb)
  return ("%d %s"):format(i, class.is(cb, Callback) and cb.class_name or "table")
end

--- What callbacks give as get_state(), by their names.
function List:states()
  local out = {}
  for i, cb in ipairs(self.callbacks) do
    local get = cb.get_state
    local state = get and get(cb)
    if state ~= nil then out[state_name(i, cb)] = state end
  end
  return out
end

--- Give states back to set_state(state) of the callbacks that have them.
function List:set_states(states)
  for i, cb in ipairs(self.callbacks) do
    local set, state = cb.set_state, states[state_name(i, cb)]
    if set and state ~= nil then set(cb, state) end
  end
end

--- The fit is over, well or not: callbacks let go of files and the like.
function List:close()
  for _, cb in ipairs(self.callbacks) do
    local release = class.is(cb, Callback) and cb._release
    if release then
      local ok, err = pcall(release, cb)
      if not ok then core.log("warn", ("callbacks: %s: %s"):format(tostring(cb), tostring(err))) end
    end
  end
end

return M
