--- Messages of protocol buffers, written by hand: what TensorBoard's plugins keep.
---
---     pb.message(1, pb.text(1, "name") .. pb.double(3, 0.5))
---
--- Each function gives the bytes of one field, "" where the value is nil.

local core = require "tidemill.core"

local M = {}

local char, floor = string.char, math.floor

--- A whole number below 2^53 that is not negative; -1 (an unknown size) has its ten bytes.
local function varint(n)
  if n < 0 then return ("\255"):rep(9) .. "\1" end
  local out = {}
  while n >= 128 do
    out[#out + 1] = char(n % 128 + 128)
    n = floor(n / 128)
  end
  out[#out + 1] = char(n)
  return table.concat(out)
end

local function key(field, kind) return varint(field * 8 + kind) end

function M.int(field, n)
  if n == nil then return "" end
  return key(field, 0) .. varint(n)
end

function M.bool(field, x)
  if x == nil then return "" end
  return M.int(field, x and 1 or 0)
end

function M.double(field, x)
  if x == nil then return "" end
  return key(field, 1) .. core.double_bytes(x)
end

function M.text(field, s)
  if s == nil then return "" end
  return key(field, 2) .. varint(#s) .. s
end

--- A message that is a field; also bytes.
M.message = M.text

return M
