--- tm.callbacks.ProgbarLogger: shows how far fit, evaluate or predict is; they add one
--- unless verbose is 0.
---
--- verbose 1: a bar on a terminal, progress lines elsewhere; 2: a line an epoch; "auto":
--- 1 on a terminal, 2 elsewhere.

local Callback = require "tidemill.callbacks.callback"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local progress = require "tidemill.fit.progress"
local values = require "tidemill.lib.values"

---@class tm.callbacks.ProgbarLogger : tm.callbacks.Callback
local Progbar = Callback:extend("ProgbarLogger")

local MOST = 8 -- numbers of a list in a line

local function to_stdout(s)
  io.stdout:write(s)
  io.stdout:flush()
end

--- ProgbarLogger{ count_mode = "steps", columns, write }: columns of the terminal (false:
--- it is none), write(text); both are found out where they are not given.  Keras's
--- stateful_metrics is taken and means nothing: no log is averaged here a second time.
function Progbar:init(given)
  local o = options.read("ProgbarLogger", given, { "stateful_metrics", "columns", "write", count_mode = "steps" })
  if o.count_mode ~= "steps" then
    errors.raise("invalid_argument", 'ProgbarLogger: count_mode is "steps", got %s', tostring(o.count_mode))
  end
  self.columns = o.columns
  self.write = o.write or to_stdout
end

--- Columns of the terminal, nil where there is none.
local function columns_of(self)
  if self.columns ~= nil then return self.columns or nil end
  return core.terminal()
end

local function begin(self)
  local columns, verbose = columns_of(self), self.params.verbose
  if verbose == nil or verbose == "auto" then verbose = columns and 1 or 2 end
  local steps = self.params.steps
  self.bar = verbose ~= 0 and progress.new {
    target = type(steps) == "number" and steps or self.fits and self.found or nil, verbose = verbose,
    columns = columns, write = self.write,
  } or nil
  self.done = 0
end

-- --- names in order ---

--- A line has room for numbers and short lists of them, not for a confusion matrix.
local function is_shown(x)
  if not values.is_tensor(x) then return x ~= nil and type(x) ~= "table" end
  return x.rank == 0 or (x.rank == 1 and x:size() <= MOST)
end

--- { name, value } of logs: the metrics of the model in their order, the rest by name, each
--- of validation behind those of training.
local function listed(self, logs)
  local list, taken = {}, {}
  local function add(name)
    if is_shown(logs[name]) and not taken[name] then
      taken[name] = true
      list[#list + 1] = { name, logs[name] }
    end
  end
  local names = { "loss" }
  for _, m in ipairs(self.model and self.model.metrics or {}) do names[#names + 1] = m.name end
  for _, name in ipairs(nest.keys(logs)) do
    if type(name) == "string" and name:sub(1, 4) ~= "val_" then names[#names + 1] = name end
  end
  for _, name in ipairs(names) do add(name) end
  for _, name in ipairs(names) do add("val_" .. name) end
  for _, name in ipairs(nest.keys(logs)) do add(name) end
  return list
end

local function copy(logs)
  local _ = logs.loss -- a lazy table is filled by the first look
  local out = {}
  for k, v in pairs(logs) do out[k] = v end
  return out
end

local function finish(self, logs)
  local bar = self.bar
  self.bar = nil
  if not bar then return end
  bar:finish(math.max(self.done, 0), logs and listed(self, logs))
end

-- --- hooks ---

function Progbar:on_train_begin() self.fits, self.found = true, nil end

function Progbar:on_epoch_begin(epoch)
  begin(self)
  if self.bar and (self.params.epochs or 1) > 1 then
    self.write(("Epoch %d/%d\n"):format(epoch, self.params.epochs))
  end
end

--- Now and then: so many steps are done.  `logs` is looked into only when a line is due.
function Progbar:on_progress(kind, done, logs, final)
  if self.fits and kind ~= "train" then return end
  local bar = self.bar
  self.done = done
  if not bar then return end
  bar:saw(done)
  if final or done == 0 or (done == bar.target and not bar.columns) or not bar:due() then return end
  bar:update(done, kind ~= "predict" and listed(self, copy(logs)) or nil)
end

function Progbar:on_epoch_end(_, logs)
  self.found = self.done -- so many steps the next epoch has too, where nobody else knows
  finish(self, logs)
end

function Progbar:on_train_end() self.fits = false end

function Progbar:on_test_begin()
  if not self.fits then begin(self) end
end

function Progbar:on_test_end(logs)
  if not self.fits then finish(self, logs) end
end

function Progbar:on_predict_begin() begin(self) end

function Progbar:on_predict_end() finish(self) end

function Progbar:_release()
  if self.bar then self.bar:leave() end
  self.bar = nil
end

return Progbar
