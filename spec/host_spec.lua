-- The program: build/tidemill (or $TM_BUILD/tidemill).

local program = (os.getenv "TM_BUILD" or "build") .. "/tidemill"
local exists = io.open(program)
if exists then exists:close() end

--- Run a shell line; its output (both streams) and exit status.
local function run(line)
  local f = assert(io.popen(line .. " 2>&1; echo \"rc $?\"", "r"))
  local text = f:read "a"
  f:close()
  local out, rc = text:match "^(.-)rc (%d+)\n$"
  return out, tonumber(rc)
end

local function text(code) return run(("%s -e '%s'"):format(program, code)) end

--- The same, interrupted after a while.
local function interrupted(code)
  return run(("timeout -k 3 -s INT 0.5 %s -e '%s'"):format(program, code))
end

describe("tidemill", function()
  if not exists then return end

  it("runs a script with arguments", function()
    local name = os.tmpname()
    local f = assert(io.open(name, "w"))
    f:write "print(arg[0] ~= nil, arg[1], ...)"
    f:close()
    local out, rc = run(("%s %s a b"):format(program, name))
    os.remove(name)
    assert.equal("true\ta\ta\tb\n", out)
    assert.equal(0, rc)
  end)

  it("runs a traced function without a cluster", function()
    local out, rc = text "local tm = require [[tidemill]] print(tm.func(function(x) return x + 1 end)(1):item())"
    assert.equal("2\n", (out:gsub("%.0", "")))
    assert.equal(0, rc)
  end)

  it("reads a script from standard input", function()
    assert.equal("2\n", (run(("echo 'print(1+1)' | %s"):format(program))))
  end)

  it("says its version", function() assert.truthy(run(program .. " --version"):find "^tidemill %d") end)

  it("ends with status 1 and a traceback after an error", function()
    local out, rc = text [[error "boom"]]
    assert.equal(1, rc)
    assert.truthy(out:find "boom")
    assert.truthy(out:find "traceback")
    out, rc = text [[require "tidemill".tensor {1, "a"}]]
    assert.equal(1, rc)
    assert.truthy(out:find "invalid_argument")
    assert.truthy(out:find "traceback")
    out, rc = run(program .. " /no/such/script.lua")
    assert.equal(1, rc)
    assert.truthy(out:find "/no/such/script.lua")
  end)

  it("is interrupted wherever it is", function()
    for _, code in ipairs {
      "while true do end",
      "while true do pcall(function() while true do end end) end",
      "coroutine.wrap(function() while true do end end)()",
      "require \"tidemill\".sleep(60)",
    } do
      -- Loops that LuaJIT has compiled look at no hook; TSan puts signals off in them.
      local deaf = (_VERSION == "Lua 5.1" or program:find "tsan") and code:find("while", 1, true)
      local out = deaf and "interrupted" or interrupted(code)
      assert.truthy(out:find "interrupted", code .. ": " .. out)
    end
  end)

  it("has coroutines as Lua has them", function()
    local out = text [[
      local f = coroutine.wrap(function(a) local b = coroutine.yield(a + 1) return b * 2 end)
      print(f(1), f(10), pcall(f))
      print(coroutine.resume(coroutine.create(function() error("x", 0) end)))
    ]]
    assert.equal("2\t20\tfalse\tcannot resume dead coroutine\nfalse\tx\n", out)
  end)
end)
