-- What documents say of tests: `file` "the beginning of a test's name".

local M = {}

--- The text of a file; nil: there is none.
function M.read(path)
  local f = io.open(path)
  if not f then return nil end
  local s = f:read "*a"
  f:close()
  return s
end

--- Each test that `text` names is there; gives how many it names.
function M.check(text)
  local n = 0
  for file, name in text:gmatch '`([%w_]+)` "([^"]+)"' do
    local source = M.read("spec/" .. file .. "_spec.lua") or M.read("spec/core/" .. file .. ".c")
    if not source then error("there is no spec " .. file, 2) end
    if not source:find(name, 1, true) then error(("there is no test %q in %s"):format(name, file), 2) end
    n = n + 1
  end
  return n
end

return M
