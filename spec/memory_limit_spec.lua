--- Little memory is an error, not a program that never ends.

local program = (os.getenv "TM_BUILD" or "build") .. "/tidemill"

local function limited(kilobytes, command)
  local pipe = assert(io.popen(("(ulimit -v %d; timeout 20 %s %s) 2>&1; echo status $?"):format(kilobytes, program,
    command)))
  local text = pipe:read "a"
  pipe:close()
  return tonumber(text:match "status (%d+)%s*$"), text
end

describe("a process with little memory", function()
  it("ends with resource_exhausted, or does its work", function()
    -- A sanitized program needs terabytes of address space: it cannot even start.
    if limited(400000, "-e 'return 1'") ~= 0 then return pending "the program does not start under a limit" end
    for _, kilobytes in ipairs { 150000, 250000, 400000 } do
      local status, text = limited(kilobytes, "examples/tutorial.lua")
      assert.is_true(status == 0 or (status == 1 and text:find("resource_exhausted", 1, true) ~= nil), text)
    end
  end)
end)
