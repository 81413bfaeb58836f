-- docs/tensorboard.md: its blocks run, one after the other; the options it names are there.
local tm = require "tidemill"
local E = dofile "spec/tools/events.lua"
local P = dofile "spec/tools/process.lua"

describe("docs/tensorboard.md", function()
  after_each(function() P.cleanup() end)
  local f = io.open "docs/tensorboard.md"
  local text = f:read "*a"
  f:close()

  it("has blocks that run", function()
    local dir = P.dir()
    local parts = {}
    for block in text:gmatch "```lua\n(.-)```" do parts[#parts + 1] = block end
    assert.equal(2, #parts)
    local source = table.concat(parts, "\n"):gsub('"logs/', '"' .. dir .. "/")
    assert(load(source, "=doc"))()
    assert.equal(5, #E.tag(E.of(dir .. "/run1/train"), "epoch_loss"))
    assert.equal(100, #E.tag(E.of(dir .. "/mine"), "loss"))
  end)

  it("names options and pictures that there are", function()
    for _, option in ipairs { "histogram_freq", "update_freq", "profile_batch", "hparams", "write_steps_per_second",
      "write_images", "write_graph", "embeddings_freq", "embeddings_metadata" } do
      assert.is_truthy(text:find(option, 1, true), option)
      local ok, e = pcall(tm.callbacks.TensorBoard, { [option] = {} })
      assert.is_true(ok or not tostring(e):find("unknown option", 1, true), option)
    end
    for name in text:gmatch "%]%(([%w-]+%.png)%)" do assert(io.open("docs/" .. name)):close() end
  end)
end)
