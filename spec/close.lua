--- Help for specs: numbers that must agree, in nested lists.

local M = {}

--- Raise unless two nested lists of numbers agree within atol + rtol * |b|.
function M.check(a, b, rtol, atol, path)
  path = path or "value"
  if type(b) == "table" then
    assert(type(a) == "table", path .. ": a list was expected, got " .. tostring(a))
    assert(#a == #b, ("%s: %d entries, not %d"):format(path, #a, #b))
    for i = 1, #b do M.check(a[i], b[i], rtol, atol, path .. "[" .. i .. "]") end
    return
  end
  assert(type(a) == "number" and type(b) == "number", path .. ": no number: " .. tostring(a))
  local far = math.abs(a - b) > (atol or 1e-6) + (rtol or 1e-5) * math.abs(b)
  assert(not far and a == a, ("%s: %.9g, expected %.9g"):format(path, a, b))
end

return M
