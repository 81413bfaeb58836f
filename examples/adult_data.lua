-- The census data of examples/data/adult as batches for models: every word and every bin
-- of a number is an id, the five numbers are normalised as well.
--
--     local adult = dofile "examples/adult_data.lua"
--     adult.train:shuffle(adult.rows):batch(128):map(adult.encode)   -- { { ids, numbers }, label }

local tm = require "tidemill"

local M = { rows = 32561, test_rows = 16281 }
local folder = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" or "."

local words = { "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex",
  "native_country" }
-- Numbers go into the model twice: as they are (the two sums of money by their
-- logarithm), and by the bin they fall into.
local bins = {
  age = { 18, 21, 25, 30, 35, 40, 45, 50, 55, 60, 65 },
  hours_per_week = { 20, 30, 39, 41, 50, 60 },
  capital_gain = { 1, 3000, 5000, 7000, 10000, 20000 },
  capital_loss = { 1, 1500, 1700, 1850, 1950, 2300 },
}
local binned = { "age", "hours_per_week", "capital_gain", "capital_loss" }

local function csv(name)
  return tm.data.csv {
    files = folder .. "/data/adult/" .. name, na_value = "?", comment = "|", label = "income",
    columns = { "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation",
      "relationship", "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income" },
  }
end

M.train, M.test = csv "adult.data.gz", csv "adult.test.gz"

-- Every word and every bin gets an id of its own: ids of one column follow those of the
-- column before.
local lookups, first, ids = {}, {}, 0
for _, name in ipairs(words) do
  lookups[name] = tm.layers.StringLookup { name = name }
  lookups[name]:adapt(M.train:batch(4096):map(function(features) return features[name] end))
  first[name], ids = ids, ids + lookups[name]:vocabulary_size()
end
for _, name in ipairs(binned) do
  lookups[name] = tm.layers.Discretization { name = name, bin_boundaries = bins[name] }
  first[name], ids = ids, ids + #bins[name] + 1
end

local function numbers_of(x)
  local function number(name) return tm.cast(x[name], "float32") end
  return tm.stack({
    number "age", number "education_num", number "hours_per_week", tm.log1p(number "capital_gain"),
    tm.log1p(number "capital_loss"),
  }, 2)
end

local normal = tm.layers.Normalization()
normal:adapt(M.train:batch(4096):map(function(features) return numbers_of(features) end))

--- How many columns of ids there are, how many ids, how many numbers.
M.columns, M.ids, M.numbers = #words + #binned, ids, 5

--- A batch of rows as { { ids, numbers }, label }.
function M.encode(features, label)
  local columns = {}
  for _, list in ipairs { words, binned } do
    for _, name in ipairs(list) do columns[#columns + 1] = lookups[name](features[name]) + first[name] end
  end
  -- In the test file a dot stands after the label.
  local rich = tm.logical_or(tm.equal(label, ">50K"), tm.equal(label, ">50K."))
  local inputs = { tm.stack(columns, 2), normal(numbers_of(features)) }
  return { inputs, tm.cast(tm.expand_dims(rich, 2), "float32") }
end

return M
