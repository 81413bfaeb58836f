-- Fail when a file includes a layer that core/LAYERS does not allow it.
-- Usage: lua5.4 spec/tools/layers.lua core/*/*.[ch]
local allow, bad = {}, 0
for line in io.lines "core/LAYERS" do
  local layer, deps = line:match "^(%w+):%s*(.*)"
  if layer then
    allow[layer] = { [layer] = true }
    for d in deps:gmatch "%w+" do
      assert(allow[d], layer .. " depends on " .. d .. ", which is above it")
      allow[layer][d] = true
    end
  end
end
for _, path in ipairs(arg) do
  local layer, n = path:match "^core/(%w+)/", 0
  assert(allow[layer], path .. ": its layer is not in core/LAYERS")
  for line in io.lines(path) do
    n = n + 1
    local dep = line:match '^%s*#%s*include%s+"(%w+)/'
    if dep and not allow[layer][dep] then
      print(("%s:%d: %s may not include %s"):format(path, n, layer, dep))
      bad = bad + 1
    end
  end
end
os.exit(bad == 0)
