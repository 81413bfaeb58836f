--- How wide text is on a terminal.
---
--- Text is UTF-8; what is none counts byte by byte.

local M = {}

local CHARACTER = "[%z\1-\127\192-\247][\128-\191]*"

local wide = {
  { 0x1100, 0x115f }, { 0x2e80, 0x303e }, { 0x3041, 0xa4cf }, { 0xac00, 0xd7a3 }, { 0xf900, 0xfaff },
  { 0xfe30, 0xfe6f }, { 0xff00, 0xff60 }, { 0xffe0, 0xffe6 }, { 0x1f300, 0x1f64f }, { 0x1f680, 0x1f6ff },
  { 0x1f900, 0x1f9ff }, { 0x20000, 0x3fffd },
}
local without = { { 0x300, 0x36f }, { 0x200b, 0x200f }, { 0xfe00, 0xfe0f } }

local function code(c)
  local first = c:byte()
  if first < 0x80 then return first end
  local n = first >= 0xf0 and first - 0xf0 or first >= 0xe0 and first - 0xe0 or first - 0xc0
  for i = 2, #c do n = n * 64 + c:byte(i) - 0x80 end
  return n
end

local function among(n, ranges)
  for _, r in ipairs(ranges) do
    if n >= r[1] and n <= r[2] then return true end
  end
  return false
end

local function columns(c)
  local n = code(c)
  if among(n, without) then return 0 end
  return among(n, wide) and 2 or 1
end

--- Columns that a text takes.
function M.width(s)
  local n = 0
  for c in s:gmatch(CHARACTER) do n = n + columns(c) end
  return n
end

--- As much of a text as fits in n columns; "…" stands for what was cut off.
function M.cut(s, n)
  if M.width(s) <= n then return s end
  local out, used = {}, 0
  for c in s:gmatch(CHARACTER) do
    local w = columns(c)
    if used + w > n - 1 then break end
    out[#out + 1], used = c, used + w
  end
  return table.concat(out) .. (n > 0 and "…" or "")
end

--- A text in pieces of at most n columns.
function M.wrap(s, n)
  local out, piece, used = {}, {}, 0
  for c in s:gmatch(CHARACTER) do
    local w = columns(c)
    if used + w > n and used > 0 then
      out[#out + 1], piece, used = table.concat(piece), {}, 0
    end
    piece[#piece + 1], used = c, used + w
  end
  out[#out + 1] = table.concat(piece)
  return out
end

--- A name on one line: control characters become "?".
function M.plain(s) return (tostring(s):gsub("%c", "?")) end

return M
