--- tm.callbacks.CSVLogger: a line an epoch.
---
--- Invariants
---   (1) A line is in the file, whole, when the epoch's hooks are done.
---   (2) The first line has the names; an old file's names decide the columns when it is
---       continued.
---   (3) A fit that BackupAndRestore continues finds the lines of the epochs before its
---       backup, and no line of a later one.

local Callback = require "tidemill.callbacks.callback"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"

---@class tm.callbacks.CSVLogger : tm.callbacks.Callback
local CSVLogger = Callback:extend("CSVLogger")

local NAME = "CSVLogger"

--- CSVLogger(filename, { separator = ",", append = false })
function CSVLogger:init(filename, given)
  filename, given = Callback.lead("filename", filename, given)
  self.filename = options.path(NAME, "the name of a file", filename)
  local o = options.read(NAME, given, { separator = ",", append = false })
  if type(o.separator) ~= "string" or #o.separator ~= 1 or o.separator:find '[%c"]' and o.separator ~= "\t" then
    errors.raise("invalid_argument", "%s: separator is one character, got %s", NAME, tostring(o.separator))
  end
  self.separator, self.append = o.separator, options.flag(NAME, "append", o.append)
end

--- As the system says it (errno).
local codes = { [1] = "permission_denied", [2] = "not_found", [13] = "permission_denied", [20] = "invalid_argument",
  [21] = "invalid_argument", [28] = "resource_exhausted", [30] = "permission_denied" }

local function must(self, what, ok, why, errno)
  if ok then return ok end
  return errors.raise(codes[errno] or "unavailable", '%s: "%s" %s: %s', NAME, self.filename, what, tostring(why))
end

--- Its directory is made, as that of a checkpoint is.
local function make_directory(self)
  local dir = self.filename:match "^(.*)/[^/]*$"
  if not dir or dir == "" then return end
  local ok, e = pcall(core.make_dir, dir)
  if not ok then
    if errors.is_error(e) then e.message = ('%s: "%s" cannot be written: %s'):format(NAME, self.filename, e.message) end
    error(e, 0)
  end
end

-- --- lines ---

local function quoted(self, text)
  if not text:find('["\r\n]') and not text:find(self.separator, 1, true) then return text end
  return '"' .. text:gsub('"', '""') .. '"'
end

--- The shortest text that reads back as this number.
local function number_text(x)
  if x == math.floor(x) and math.abs(x) < 2 ^ 53 then return ("%.0f"):format(x) end
  if x ~= x then return "nan" end
  for digits = 15, 17 do
    local text = ("%." .. digits .. "g"):format(x)
    if tonumber(text) == x or digits == 17 then return text end
  end
end

--- A list of numbers is one cell, as Keras writes it: "[0.5, 0.25]".
local function text_of(x)
  if type(x) == "number" then return number_text(x) end
  if not values.is_tensor(x) or x.rank ~= 1 then return tostring(x) end
  local cells = {}
  for i, v in ipairs(x:totable()) do cells[i] = text_of(v) end
  return "[" .. table.concat(cells, ", ") .. "]"
end

--- Has it a place in a line?  Confusion matrices have none.
local function is_cell(x) return not (type(x) == "table" or values.is_tensor(x) and x.rank > 1) end

local function line(self, cells)
  for i, x in ipairs(cells) do cells[i] = quoted(self, x) end
  return table.concat(cells, self.separator) .. "\n"
end

--- The cells of a header line.
local function split(self, header)
  local names, at = {}, 1
  while at <= #header + 1 do
    if header:sub(at, at) == '"' then
      local to = at + 1
      while header:sub(to, to) ~= '"' or header:sub(to + 1, to + 1) == '"' do
        if to > #header then break end
        to = to + (header:sub(to, to) == '"' and 2 or 1)
      end
      names[#names + 1] = header:sub(at + 1, to - 1):gsub('""', '"')
      at = to + 2
    else
      local to = header:find(self.separator, at, true) or #header + 1
      names[#names + 1] = header:sub(at, to - 1)
      at = to + 1
    end
  end
  return names
end

-- --- the file ---

local function contents(self)
  local f = io.open(self.filename, "rb")
  if not f then return "" end
  local text = f:read "*a"
  f:close()
  return text or ""
end

local function columns(self, text)
  local names = split(self, (text:match "^[^\r\n]*"))
  table.remove(names, 1)
  self.keys = names
end

--- Whole lines only: one that a killed process wrote half is taken away.
local function whole(self, text)
  local lines, last = text:match "^(.*\n)([^\n]*)$"
  if last == nil or last == "" then return last and text or "" end
  local wanted = #split(self, (lines:match "^[^\r\n]*"))
  return #split(self, last) == wanted and text .. "\n" or lines
end

--- Begin the file with this text.
local function rewrite(self, text)
  local temporary = self.filename .. ".tmp"
  local f = must(self, "cannot be written", io.open(temporary, "wb"))
  local ok, why, errno = f:write(text)
  if ok then ok, why, errno = f:flush() end
  f:close()
  if ok then ok, why, errno = os.rename(temporary, self.filename) end
  if not ok then os.remove(temporary) end
  must(self, "cannot be written", ok, why, errno)
end

--- Wrong names are told before the first epoch, without touching what is there.
function CSVLogger:on_train_begin()
  self:_release()
  self.keys, self._kept = nil, nil
  make_directory(self)
  must(self, "cannot be written", io.open(self.filename, "ab")):close()
end

--- Open it and see what it has: at the first epoch, when it is known whether a backup is
--- continued.
local function open(self)
  local old = (self._kept or self.append) and contents(self) or ""
  local keep = self._kept and old:sub(1, self._kept) or self.append and old or ""
  keep = whole(self, keep)
  if self._kept and #keep < self._kept then
    core.log("warn", ('%s: "%s" is shorter than it was at the backup'):format(NAME, self.filename))
  end
  if keep ~= old and keep ~= "" then rewrite(self, keep) end
  self._file = must(self, "cannot be written", io.open(self.filename, keep == "" and "wb" or "ab"))
  if keep ~= "" then columns(self, keep) end
end

function CSVLogger:on_epoch_begin()
  if not self._file then open(self) end
end

local function names_of(logs)
  local keys, validated = {}, false
  for name, x in pairs(logs) do
    if is_cell(x) then keys[#keys + 1] = name end
    validated = validated or name:sub(1, 4) == "val_"
  end
  table.sort(keys)
  if not validated then -- with validation_freq the first epochs lack them
    for i = 1, #keys do keys[#keys + 1] = "val_" .. keys[i] end
  end
  return keys
end

local function write(self, text)
  must(self, "cannot be written", self._file:write(text))
  must(self, "cannot be written", self._file:flush())
end

function CSVLogger:on_epoch_end(epoch, logs)
  logs = logs or {}
  if not self._file then open(self) end
  local text = ""
  if not self.keys then
    self.keys = names_of(logs)
    local header = { "epoch" }
    for i, name in ipairs(self.keys) do header[i + 1] = name end
    text = line(self, header)
  end
  local cells = { number_text(epoch) }
  for i, name in ipairs(self.keys) do
    local x = logs[name]
    cells[i + 1] = (x == nil or not is_cell(x)) and "NA" or text_of(x)
  end
  write(self, text .. line(self, cells))
end

function CSVLogger:on_train_end() self:_release() end

function CSVLogger:_release()
  local f = self._file
  self._file = nil
  if f then f:close() end
end

function CSVLogger:get_state() return { bytes = self._file and self._file:seek "end" or nil } end

function CSVLogger:set_state(s) self._kept = s.bytes end

return CSVLogger
