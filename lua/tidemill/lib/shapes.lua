--- Shapes as text: (2, 3), () for a scalar, ? for a size that is not known.

local M = {}

---@param shape integer[]
---@return string
function M.text(shape)
  local t = {}
  for i, n in ipairs(shape) do t[i] = n < 0 and "?" or ("%d"):format(n) end
  return "(" .. table.concat(t, ", ") .. ")"
end

return M
