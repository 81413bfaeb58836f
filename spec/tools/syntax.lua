-- Fail on a file that this interpreter cannot compile.
-- Usage: luajit spec/tools/syntax.lua FILE...
local bad = 0
for _, path in ipairs(arg) do
  local chunk, err = loadfile(path)
  if not chunk then
    print(err)
    bad = bad + 1
  end
end
os.exit(bad == 0 and 0 or 1)
