--- What the benchmarks share: timing and one JSON line.

local M = {}

M.unpack = table.unpack or unpack

--- Print `RESULT {json}` of a list of {name, value}.
function M.result(fields)
  local parts = {}
  for _, f in ipairs(fields) do
    local v = f[2]
    parts[#parts + 1] = ("%q: %s"):format(f[1], type(v) == "string" and ("%q"):format(v) or ("%.6g"):format(v))
  end
  print("RESULT {" .. table.concat(parts, ", ") .. "}")
end

--- Steps a second of `steps` closures after a warm-up.
function M.rate(tm, coordinator, step, args, warm, steps)
  for _ = 1, warm do coordinator:schedule(step, args) end
  coordinator:join()
  local t = tm.time()
  for _ = 1, steps do coordinator:schedule(step, args) end
  coordinator:join()
  return steps / (tm.time() - t)
end

return M
