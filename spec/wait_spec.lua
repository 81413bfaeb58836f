require "spec.tools.helper"
local tm = require "tidemill"
local wait = require "tidemill.distribute.wait"

--- A wait of `seconds` that gives "done".
local function pause(seconds)
  local over = tm.time() + seconds
  return wait.until_true(tm.time, nil, function(slice)
    tm.sleep(math.min(slice or 1, math.max(0, over - tm.time())))
    return tm.time() >= over and "done"
  end)
end

describe("a hook of waits", function()
  it("is called several times in a long wait, and not after it was taken off", function()
    local n = 0
    local detach = wait.attend(function() n = n + 1 end)
    assert.equal("done", pause(0.3))
    assert.is_true(n >= 4, tostring(n))
    detach()
    local before = n
    pause(0.1)
    assert.equal(before, n)
  end)

  it("may wait itself: others are called meanwhile, it is not", function()
    local a, b = 0, 0
    local detach_a = wait.attend(function()
      a = a + 1
      pause(0.12)
    end)
    local detach_b = wait.attend(function() b = b + 1 end)
    wait.heed()
    detach_a()
    detach_b()
    assert.equal(1, a)
    assert.is_true(b >= 3, tostring(b))
  end)

  it("raises its error where the program waits, and is called again", function()
    local n = 0
    local detach = wait.attend(function()
      n = n + 1
      if n == 1 then error("told", 0) end
    end)
    local ok, e = pcall(pause, 0.1)
    assert.is_false(ok)
    assert.equal("told", e)
    assert.equal("done", pause(0.1))
    detach()
    assert.is_true(n > 1)
  end)

  it("may take itself off, and is not called inside a coroutine", function()
    local n, detach = 0, nil
    detach = wait.attend(function()
      n = n + 1
      detach()
    end)
    wait.async(function() wait.heed() end)
    assert.equal(0, n)
    pause(0.1)
    assert.equal(1, n)
  end)
end)

describe("coroutines of async", function()
  it("run while the main program sleeps, and sleep while others run", function()
    local order = {}
    for _, name in ipairs { "a", "b" } do
      wait.async(function()
        for i = 1, 3 do
          order[#order + 1] = name .. i
          tm.sleep(0.001)
        end
      end)
    end
    tm.sleep(0.02)
    while #order < 6 do tm.sleep(0.001) end
    assert.equal("a1 b1", table.concat(order, " ", 1, 2))
    assert.equal(tm.sleep(0), nil)
  end)

  it("may start others and end first, or wait in coroutines of their own", function()
    local done = 0
    wait.async(function()
      wait.async(function()
        tm.sleep(0.002)
        coroutine.wrap(function()
          tm.sleep(0.002) -- a wait that takes turns while its starter is running
          done = done + 1
        end)()
        done = done + 1
      end)
      done = done + 1
    end)
    while done < 3 do tm.sleep(0.001) end
    assert.equal(3, done)
  end)
end)
