--- Wires in front of tasks, that a spec may cut, slow and stop (spec/tools/proxy.c).
---
---     local wires = dofile "spec/tools/wires.lua"
---     local w = wires.new(P, 4711)       -- forwards to 127.0.0.1:4711
---     w.port; w.order "cut"; w.process

local M = {}

--- A wire to a port of this machine; P is spec/tools/process.lua.
function M.new(P, port)
  local control = P.dir() .. "/control"
  assert(io.open(control, "w")):close()
  local process = P.start { (P.tidemill:gsub("tidemill$", "proxy")), "127.0.0.1:" .. port, control }
  local wire = { port = tonumber(process:says "port (%d+)"), process = process }
  function wire.order(text)
    local f = assert(io.open(control, "a"))
    f:write(text, "\n")
    f:close()
  end
  return wire
end

return M
