-- Learning curves of the modes on the Adult data: 3 workers, 2 ps.  Prints CSV; the drawing
-- goes into a file.  usage: modes.lua [EPOCHS [FILE.svg]]
local here = arg[0]:match "^(.*/)" or "./"
local tm = require "tidemill"
local adult = dofile(here .. "../examples/adult_data.lua")
local EPOCHS, BATCH, POINTS = tonumber(arg[1]) or 2, 128, 24
local steps = math.floor(EPOCHS * adult.rows / BATCH / POINTS / 3) * 3 -- between two points

local test = {}
for batch in adult.test:take(8192):batch(4096):map(adult.encode):each() do test[#test + 1] = batch end

--- Loss on the test rows after every `steps` steps.
local function curve(options, rate)
  tm.random.set_seed(1)
  local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 3, ps = 2 }, options)
  local coordinator = tm.distribute.ClusterCoordinator(strategy)
  local model, optimizer
  strategy:scope(function()
    local ids = tm.Input { shape = { adult.columns }, dtype = "int64" }
    local numbers = tm.Input { shape = { adult.numbers } }
    local words = tm.layers.Flatten()(tm.layers.Embedding { input_dim = adult.ids, output_dim = 8 }(ids))
    local hidden = tm.layers.Dense { units = 64, activation = "relu" }(tm.layers.Concatenate() { words, numbers })
    model = tm.Model { inputs = { ids, numbers },
      outputs = tm.layers.Dense { units = 1, activation = "sigmoid" }(hidden) }
    optimizer = tm.optimizers.Adam { learning_rate = rate }
  end)
  local bce = tm.losses.BinaryCrossentropy()
  local step = tm.func(function(iterator)
    local batch = iterator:next()
    local tape = tm.GradientTape()
    local loss = bce(batch[2], model(batch[1], { training = true }))
    optimizer:apply_gradients(tape:gradient(loss, model.trainable_variables), model.trainable_variables)
  end)
  local loss_of = tm.func(function(x, y) return bce(y, model(x)) end)
  local iterator = coordinator:create_per_worker_dataset(function()
    return adult.train:shuffle(adult.rows):rep():batch(BATCH):map(adult.encode):prefetch(2)
  end):iterator()
  local points, started, paused = {}, tm.time(), 0
  for i = 0, POINTS do
    if i > 0 then
      for _ = 1, steps do coordinator:schedule(step, { iterator }) end
      coordinator:join()
    end
    local now, sum = tm.time(), 0
    for _, batch in ipairs(test) do sum = sum + loss_of(batch[1], batch[2]):item() end
    points[#points + 1] = { examples = i * steps * BATCH, loss = sum / #test, seconds = now - started - paused }
    paused = paused + tm.time() - now
  end
  coordinator:close()
  return points
end

local runs = {
  { name = "async", color = "#1d3557", rate = 0.001 },
  { name = "ssp, staleness 2", color = "#2a9d8f", rate = 0.001, options = { mode = "ssp", staleness = 2 } },
  { name = "sync", color = "#e76f51", rate = 0.001, options = { mode = "sync" } },
  { name = "sync, three times the rate", color = "#f4a261", rate = 0.003, options = { mode = "sync" } },
}
local lowest, highest = math.huge, 0
print "mode,examples,loss,seconds"
for _, run in ipairs(runs) do
  run.points = curve(run.options, run.rate)
  for _, p in ipairs(run.points) do
    print(("%s,%d,%.5f,%.3f"):format(run.name:gsub(",", ""), p.examples, p.loss, p.seconds))
    lowest, highest = math.min(lowest, p.loss), math.max(highest, p.loss)
  end
end

-- --- the drawing: examples to the right, loss upwards ---

if not arg[2] then return end
local LEFT, TOP, WIDTH, HEIGHT = 56, 24, 520, 260
local last = runs[1].points[#runs[1].points].examples
lowest, highest = math.floor(lowest * 20) / 20, math.ceil(highest * 20) / 20
local function x_of(examples) return LEFT + WIDTH * examples / last end
local function y_of(loss) return TOP + HEIGHT * (highest - loss) / (highest - lowest) end

local head = '<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">'
local out = { head
  :format(LEFT + WIDTH + 24, TOP + HEIGHT + 48), '<rect width="100%" height="100%" fill="white"/>' }
local function draw(fmt, ...) out[#out + 1] = fmt:format(...) end
for k = 0, 5 do
  local loss = lowest + (highest - lowest) * k / 5
  draw('<path d="M%d %.1fH%d" stroke="#ddd"/>', LEFT, y_of(loss), LEFT + WIDTH)
  draw('<text x="%d" y="%.1f" text-anchor="end">%.2f</text>', LEFT - 6, y_of(loss) + 4, loss)
  draw('<text x="%.1f" y="%d" text-anchor="middle">%d</text>', x_of(last * k / 5), TOP + HEIGHT + 18,
    math.floor(last * k / 5 / 1000 + 0.5))
end
draw('<text x="%d" y="%d" text-anchor="middle">thousand examples</text>', LEFT + WIDTH / 2, TOP + HEIGHT + 38)
draw('<text x="%d" y="14">loss on the test rows</text>', LEFT - 40)
for k, run in ipairs(runs) do
  local points = {}
  for i, p in ipairs(run.points) do points[i] = ("%.1f,%.1f"):format(x_of(p.examples), y_of(p.loss)) end
  draw('<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>', run.color, table.concat(points, " "))
  draw('<path d="M%d %dh24" stroke="%s" stroke-width="3"/>', LEFT + WIDTH - 220, TOP + 6 + 18 * k, run.color)
  draw('<text x="%d" y="%d">%s</text>', LEFT + WIDTH - 188, TOP + 10 + 18 * k, run.name)
end
out[#out + 1] = "</svg>\n"
local file = assert(io.open(arg[2], "w"))
file:write(table.concat(out, "\n"))
file:close()
