--- Iterators whose elements are dealt out to functions, each to one: exactly-once
--- visitation (core/cluster/coord_deal.c).
---
--- A state is one line:
---     tidemill deals 1 seed=HEX pass=N next=N undone=FIRST+N,FIRST+N of NAME:HEX ...
--- All elements of the pass below `next` are done but for the ranges `undone`.

local core = require "tidemill.core"
local errors = require "tidemill.errors"
local wait = require "tidemill.distribute.wait"
local tm = require "tidemill.lib.lazy"

local M = {}

local STATE = "tidemill deals 1 seed=%s pass=%d next=%d undone=%s of %s"
local PARTS = "^tidemill deals 1 seed=(%x+) pass=(%d+) next=(%d+) undone=([%d+,]*) of (.*)$"

--- Functions that run_epoch has started and that are not finished.
local FEW, MANY = 64, 1024

--- The uid of an iterator that is dealt out.
function M.uid(iterator, where)
  if not iterator._dealt then
    errors.raise("failed_precondition", "%s: this iterator is not dealt out; make it with "
      .. 'create_per_worker_dataset(ds, { visitation = "exactly_once" })', where)
  end
  return iterator._uid
end

-- --- states ---

--- Now, or (noted) at the moment of the checkpoint that was written last.
function M.state(iterator, noted)
  local seed, pass, next, ranges = iterator._coordinator:_open():deals(iterator._uid, noted)
  local undone = {}
  for i = 1, #ranges, 2 do undone[#undone + 1] = ("%d+%d"):format(ranges[i], ranges[i + 1]) end
  return STATE:format(seed, pass, next, table.concat(undone, ","), core.data.marks(iterator._dataset._handle))
end

function M.restore(iterator, state)
  local seed, pass, next, undone, marks
  if type(state) == "string" then seed, pass, next, undone, marks = state:match(PARTS) end
  if not seed then
    errors.raise("invalid_argument", type(state) == "string" and state:find "^tidemill iterators "
      and 'this is the state of a per-worker iterator without visitation = "exactly_once"'
      or "this is no state of an exactly-once iterator")
  end
  core.data.check_marks(iterator._dataset._handle, marks)
  local ranges = {}
  for first, n in undone:gmatch "(%d+)%+(%d+)" do
    ranges[#ranges + 1], ranges[#ranges + 2] = tonumber(first), tonumber(n)
  end
  iterator._coordinator:_open():redeal(iterator._uid, seed, tonumber(pass), tonumber(next), ranges)
  return iterator
end

--- Iterators of each coordinator that are dealt out.
local known = setmetatable({}, { __mode = "k" })

--- One was made.
function M.note(iterator)
  local c = iterator._coordinator
  known[c] = known[c] or setmetatable({}, { __mode = "k" })
  known[c][iterator] = true
end

--- All variables have their initial values again: what was done counts for nothing.
function M.begin_anew(coordinator)
  for it in pairs(known[coordinator] or {}) do
    local handle = coordinator:_open()
    handle:redeal(it._uid, (handle:deals(it._uid)), 0, 0, {})
  end
end

--- Where the iterators of fit (which are in no checkpoint) were when the last checkpoint was
--- written.
function M.kept(coordinator)
  local list = {}
  for it in pairs(known[coordinator] or {}) do
    if it._of_fit then
      list[#list + 1] = { it, M.state(it, true) }
    end
  end
  return list
end

--- The variables have the values of then: go on from there; in another pass than then, from
--- the beginning of this one.
function M.go_back(list)
  for _, pair in ipairs(list) do
    local it, state = pair[1], pair[2]
    local handle = it._coordinator:_open()
    local seed, pass = handle:deals(it._uid)
    if state:match " pass=(%d+) " == ("%d"):format(pass) then
      M.restore(it, state)
    else
      handle:redeal(it._uid, seed, pass, 0, {})
    end
  end
end

-- --- epochs ---

local function is_dealt(x) return type(x) == "table" and (getmetatable(x) or {}).__tm_per_worker and x._dealt end

--- The iterators among the arguments, each once.
local function iterators(args, list)
  for _, x in pairs(args) do
    if is_dealt(x) then
      list[x] = true
    elseif type(x) == "table" and getmetatable(x) == nil then
      iterators(x, list)
    end
  end
  return list
end

local function check(list)
  if next(list) == nil then
    errors.raise("invalid_argument", "run_epoch: none of the arguments is an iterator of "
      .. 'create_per_worker_dataset(ds, { visitation = "exactly_once" }): its data say when the epoch is over')
  end
  for it in pairs(list) do
    local p = it:_progress()
    if p.endless then
      errors.raise("invalid_argument", "run_epoch: the dataset never ends: leave out rep(), or schedule as many "
        .. "functions as you want")
    end
    if p.ended and p.dealt > 0 then it:_start_pass() end
  end
end

--- Steps that can still be started; nil: not known.
local function left(list)
  local most = math.huge
  for it in pairs(list) do
    local p = it:_progress()
    if p.left then most = math.min(most, p.left) end
  end
  return most < math.huge and most or nil
end

--- How many functions had data in this pass since `before`, and how many deals there were
--- at all.  A function need not take from each of the iterators.
local function counts(list, before)
  local steps, deals = 0, 0
  for it in pairs(list) do
    local p = it:_progress()
    local earlier = p.pass == before[it].pass and before[it].steps or 0
    steps = math.max(steps, p.steps - earlier)
    deals = deals + p.deals
  end
  return steps, deals
end

--- While the end of the data is not known: does fn take any?
local function check_takes(list, before, tried)
  local _, now = counts(list, before)
  if now > tried or left(list) then return end
  errors.raise("invalid_argument", "run_epoch: the function calls next on none of its exactly-once iterators, so the "
    .. "epoch would never end")
end

--- Start functions, not many more than there are data for, and wait for all.
local function round(coordinator, list, fn, args, before, tried)
  local handle, n, started = coordinator:_open(), left(list), 0
  local few = math.max(FEW, 4 * coordinator.strategy.num_workers)
  local ahead = n and math.max(MANY, few) or few
  while n and started < n or not n and not left(list) do
    local some = ahead / 2
    if n then some = math.min(n - started, some) end
    for _ = 1, some do coordinator:_schedule_only(fn, args) end
    started = started + some
    wait.until_true(tm.time, nil, function(slice) return handle:wait_room(slice, ahead / 2) end)
    if not n and started > ahead / 2 then check_takes(list, before, tried) end -- some are through
    ahead = math.max(ahead, math.min(MANY, 2 * ahead))
  end
  coordinator:join()
end

--- A restored ps may have brought an iterator back to an earlier pass, which is over now:
--- the next one; false: it is the pass that was asked for.
local function catch_up(pass)
  local again = false
  for it, wanted in pairs(pass) do
    local p = it:_progress()
    if p.ended and p.pass < wanted then
      it:_start_pass()
      again = true
    end
  end
  return again
end

--- See Coordinator.run_epoch.  What was given back, or lost with a ps that was restored,
--- is dealt in another round.
function M.run_epoch(coordinator, fn, args)
  local list, pass, before = iterators(type(args) == "table" and args or {}, {}), {}, {}
  check(list)
  for it in pairs(list) do
    before[it] = it:_progress()
    pass[it] = before[it].pass
  end
  repeat
    local _, tried = counts(list, before)
    round(coordinator, list, fn, args, before, tried)
    local steps, now = counts(list, before)
    local over = left(list) == 0 or now == tried
    if over and not catch_up(pass) then return steps end
  until false
end

return M
