-- Losses of the first steps of examples' models, beside those of the same models in
-- tf-keras from the same weights and batches (curves.py).
--
-- usage: tidemill spec/interop/curves.lua DIRECTORY     writes weights, batches, losses
--        tidemill spec/interop/curves.lua DIRECTORY SVG draws both

local tm = require "tidemill"

local dir, picture = arg[1], arg[2]
local STEPS = 50
local L = tm.layers

-- --- files ---

--- A tensor as raw float64, its shape in the name: x.256.12.f64
local function write(name, t)
  local shape = #t.shape > 0 and table.concat(t.shape, ".") .. "." or ""
  local f = assert(io.open(("%s/%s.%sf64"):format(dir, name, shape), "wb"))
  local list = tm.cast(tm.reshape(t, { -1 }), "float64"):totable()
  for i = 1, #list, 128 do
    local last = math.min(i + 127, #list)
    f:write(string.pack("<" .. ("d"):rep(last - i + 1), table.unpack(list, i, last)))
  end
  f:close()
end

local function write_losses(name, losses)
  local f = assert(io.open(("%s/%s.tidemill.csv"):format(dir, name), "w"))
  for _, x in ipairs(losses) do f:write(("%.9g\n"):format(x)) end
  f:close()
end

-- --- training ---

local function step_of(model, optimizer, loss)
  return tm.func(function(x, y)
    local tape = tm.GradientTape()
    local value = loss(y, model(x, { training = true }))
    local more = model.losses
    if #more > 0 then value = value + tm.add_n(more) end
    optimizer:apply_gradients(tape:gradient(value, model.trainable_variables), model.trainable_variables)
    return value
  end)
end

--- Write weights and batches, train, write losses.  `weights` names what tf-keras is given.
local function run(name, made, batches)
  for i, w in ipairs(made.model.weights) do write(("%s.w%02d"):format(name, i), w:read()) end
  local step, losses = step_of(made.model, made.optimizer, made.loss), {}
  for i = 1, STEPS do
    local x, y = table.unpack(batches[i])
    local parts = getmetatable(x) == nil and type(x) == "table" and x or { x }
    for k, part in ipairs(parts) do write(("%s.x%d.%02d"):format(name, k, i), part) end
    write(("%s.y.%02d"):format(name, i), y)
    losses[i] = step(x, y):item()
  end
  write_losses(name, losses)
end

--- The first STEPS elements of a dataset.
local function take(ds)
  local list = {}
  for e in ds:take(STEPS):each() do list[#list + 1] = e end
  return list
end

-- --- the models: layers, options and batch sizes are those of the examples ---

local models = {}

-- examples/custom_loop.lua
function models.penguins()
  local names = { "bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g" }
  local columns = { { "species", "string" } }
  for i, n in ipairs(names) do columns[i + 1] = { n, "float32", 0 } end
  local ds = tm.data.csv { files = "examples/data/penguins/penguins.csv", header = true, na_value = "NA",
    columns = columns }
  ds = ds:filter(function(x) return x.body_mass_g:greater(0) end)
  local function measures(x)
    local list = {}
    for i, n in ipairs(names) do list[i] = x[n] end
    return tm.stack(list, -1)
  end
  local kind = L.StringLookup { vocabulary = { "Adelie", "Chinstrap", "Gentoo" }, num_oov_indices = 0 }
  local normal = L.Normalization()
  normal:adapt(ds:batch(64):map(measures))
  local model = tm.Sequential {
    L.Dense { units = 16, activation = "relu", input_shape = { 4 } }, L.Dense { units = 3 },
  }
  return { model = model, optimizer = tm.optimizers.Adam { learning_rate = 0.01 },
    loss = tm.losses.SparseCategoricalCrossentropy { from_logits = true } },
    take(ds:shuffle(400, { seed = 1 }):rep():batch(16):map(function(x)
      return { normal(measures(x)), kind(x.species) }
    end))
end

-- examples/movietweetings.lua: ids by first appearance, nothing known of films
function models.movietweetings()
  local columns = { { "user", "int64" }, { "a", "string", "" }, { "film", "int64" }, { "b", "string", "" },
    { "rating", "float32" }, { "c", "string", "" }, { "time", "int64" } }
  local ds = tm.data.csv { files = "examples/data/movietweetings/ratings.dat.gz", delimiter = ":", columns = columns }
  local films, n = {}, 0
  for b in ds:batch(4096):each() do
    for _, id in ipairs(b.film:totable()) do
      if not films[id] then films[id], n = n, n + 1 end
    end
  end
  local keys, values = {}, {}
  for id, k in pairs(films) do keys[#keys + 1], values[#values + 1] = id, k end
  local number = tm.lookup.StaticHashTable { keys = tm.tensor(keys, "int64"), values = tm.tensor(values, "int64"),
    default = 0 }
  local function rows(input_dim, size, penalty)
    return L.Embedding { input_dim = input_dim, output_dim = size,
      embeddings_initializer = size > 1 and tm.initializers.RandomNormal { stddev = 0.05 } or "zeros",
      activity_regularizer = tm.regularizers.L2(penalty) }
  end
  local user, film = tm.Input { shape = {}, dtype = "int64" }, tm.Input { shape = {}, dtype = "int64" }
  local taste = L.Dot { axes = 2 } { rows(16555, 16, 0.2)(user), rows(n, 16, 0.2)(film) }
  local bias = rows(16555, 1, 0.01)(user) + rows(n, 1, 0.01)(film)
  local rate = tm.optimizers.schedules.PolynomialDecay { initial_learning_rate = 8, end_learning_rate = 0.4,
    decay_steps = 2816 }
  return { model = tm.Model { inputs = { user, film }, outputs = taste + bias + 7.323 },
    optimizer = tm.optimizers.SGD { learning_rate = rate }, loss = tm.losses.MeanSquaredError() },
    take(ds:shuffle(100000, { seed = 1 }):batch(256):map(function(r)
      return { { r.user, number:lookup(r.film) }, tm.expand_dims(r.rating, 2) }
    end))
end

-- examples/optdigits.lua without its dropout, in float64: convolution with ReLU, max-pooling
-- and Adam magnifies the last bit of a float32 some 20,000 times in 50 steps
function models.optdigits()
  local columns = {}
  for i = 1, 64 do columns[i] = "pixel" .. i end
  columns[65] = "digit"
  local ds = tm.data.csv { files = "examples/data/optdigits/optdigits.tra.gz", columns = columns, label = "digit" }
  local stack, inputs = {}, { 8, 8, 1 }
  local function add(class, o)
    o.dtype = "float64"
    stack[#stack + 1] = class(o)
  end
  for _, filters in ipairs { 16, 32, 64 } do
    add(L.Conv2D, { filters = filters, kernel_size = 3, padding = "same", use_bias = false, input_shape = inputs })
    add(L.BatchNormalization, { momentum = 0.9 })
    add(L.Activation, { activation = "relu" })
    if not inputs then add(L.MaxPooling2D, { pool_size = 2 }) end
    inputs = nil
  end
  add(L.Flatten, {})
  add(L.Dense, { units = 10 })
  local rate = tm.optimizers.schedules.CosineDecay { initial_learning_rate = 3e-3, decay_steps = 720 }
  return { model = tm.Sequential(stack), optimizer = tm.optimizers.Adam { learning_rate = rate },
    loss = tm.losses.SparseCategoricalCrossentropy { from_logits = true } },
    take(ds:shuffle(3823, { seed = 1 }):batch(64):map(function(pixels, digit)
      local list = {}
      for i = 1, 64 do list[i] = tm.cast(pixels["pixel" .. i], "float64") end
      return { tm.reshape(tm.stack(list, 2), { -1, 8, 8, 1 }) / 16, digit }
    end))
end

-- examples/adult_fit.lua without its dropout
function models.adult()
  local adult = dofile "examples/adult_data.lua"
  local ids = tm.Input { shape = { adult.columns }, dtype = "int64" }
  local numbers = tm.Input { shape = { adult.numbers } }
  local x = L.Concatenate() { L.Flatten()(L.Embedding { input_dim = adult.ids, output_dim = 8 }(ids)), numbers }
  for _, units in ipairs { 64, 32 } do x = L.Dense { units = units, activation = "relu" }(x) end
  return { model = tm.Model { inputs = { ids, numbers }, outputs = L.Dense { units = 1, activation = "sigmoid" }(x) },
    optimizer = tm.optimizers.Adam { learning_rate = 0.002 }, loss = tm.losses.BinaryCrossentropy() },
    take(adult.train:shuffle(adult.rows, { seed = 1 }):batch(256):map(adult.encode))
end

local order = { "penguins", "movietweetings", "adult", "optdigits" }

-- --- the picture ---

local function losses(path)
  local list = {}
  for line in io.lines(path) do list[#list + 1] = tonumber(line) end
  return list
end

local function draw(name, at)
  local a = losses(("%s/%s.tidemill.csv"):format(dir, name))
  local b = losses(("%s/%s.keras.csv"):format(dir, name))
  local top = 0
  for i = 1, #a do top = math.max(top, a[i], b[i]) end
  local function points(list)
    local out = {}
    for i, y in ipairs(list) do out[i] = ("%.1f,%.1f"):format(at + 40 + (i - 1) * 4, 190 - 150 * y / top) end
    return table.concat(out, " ")
  end
  return ('<text x="%d" y="20">%s</text><text x="%d" y="44" class="n">%.3g</text>'
    .. '<text x="%d" y="194" class="n">0</text>'
    .. '<text x="%d" y="210" class="n">step 1 to %d</text><path d="M%d 40V190H%d"/>'
    .. '<polyline class="k" points="%s"/><polyline class="t" points="%s"/>'):format(at + 40, name, at + 4, top, at + 24,
    at + 40, #a, at + 40, at + 240, points(b), points(a))
end

local function svg()
  local parts = { '<svg xmlns="http://www.w3.org/2000/svg" width="' .. 270 * #order .. '" height="240"'
    .. ' font-family="sans-serif" font-size="13"><style>path{fill:none;stroke:#888}polyline{fill:none}'
    .. '.k{stroke:#f4a261;stroke-width:5}.t{stroke:#1d3557;stroke-width:1.5}'
    .. '.n{font-size:10px}</style><rect width="100%" height="100%" fill="white"/>' }
  for i, name in ipairs(order) do parts[#parts + 1] = draw(name, (i - 1) * 270) end
  parts[#parts + 1] = '<text x="40" y="232" class="n">loss: tf-keras (wide line), tidemill (thin line)</text></svg>\n'
  return table.concat(parts, "\n")
end

if picture then
  local f = assert(io.open(picture, "w"))
  f:write(svg())
  f:close()
else
  tm.random.set_seed(1)
  for _, name in ipairs(order) do run(name, models[name]()) end
end
