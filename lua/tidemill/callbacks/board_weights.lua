--- What tm.callbacks.TensorBoard draws of weights: histograms, pictures, embeddings.

local class = require "tidemill.lib.class"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local MOST = 2 ^ 24 -- elements that are fetched of one variable; rows of larger ones are left out
local FETCHED = 2 ^ 20 -- rows of such a one, at most
local PIXELS = 2 ^ 22
local ROWS = 10000 -- of an embedding, for the projector

--- The value; of a large variable, rows in even steps.
local function fetch(v)
  local n, rows = values.count(v.shape), v.shape[1] or 1
  if n <= MOST then return v:read() end
  local most = math.max(1, math.min(FETCHED, math.floor(rows * MOST / n)))
  local ids = {}
  for i = 1, most do ids[i] = math.floor((i - 1) * rows / most) end
  return v:sparse_read(tm.tensor(ids, "int64"))
end

--- Numbers from the least (black) to the greatest (white).
function M.grey(x)
  x = values.cast(x, "float32")
  local least = tm.reduce_min(x)
  local range = tm.reduce_max(x) - least
  return (x - least) / tm.maximum(range, 1e-30)
end

--- A picture of a weight, as Keras makes it: a bias is a line, a kernel lies.  nil: none.
local function picture(x)
  if x:size() == 0 or x:size() > PIXELS or not values.is_float(x.dtype) then return nil end
  x = M.grey(tm.squeeze(x))
  local s = x.shape
  if #s == 0 then return nil end
  if #s == 1 then return tm.reshape(x, { 1, 1, s[1], 1 }) end
  if #s == 2 then
    if s[1] > s[2] then x = tm.transpose(x) end
    return tm.reshape(x, { 1, x.shape[1], x.shape[2], 1 })
  end
  if #s == 3 then -- each filter is a picture
    x = tm.transpose(x, { 3, 1, 2 })
    return tm.reshape(x, { s[3], s[1], s[2], 1 })
  end
end

--- Names of variables, each once.
local function named(list)
  local out, used = {}, {}
  for i, v in ipairs(list) do
    local name = v.name or "variable_" .. i
    local n = used[name] or 0
    used[name] = n + 1
    out[i] = n == 0 and name or ("%s_%d"):format(name, n)
  end
  return out
end

-- --- embeddings ---

local function embeddings_of(model)
  local out = {}
  model:walk(function(layer)
    if class.is(layer, tm.layers.Embedding) and layer.built then out[#out + 1] = layer end
  end)
  return out
end

local function file_name(layer) return (layer.name:gsub("[^%w_.-]", "_")) .. ".tsv" end

local function put(path, text)
  local f, why = io.open(path, "wb")
  local ok = f ~= nil
  if ok then
    ok, why = f:write(text)
    f:close()
  end
  if not ok then errors.raise("unavailable", 'TensorBoard: "%s" cannot be written: %s', path, tostring(why)) end
end

--- Say to TensorBoard's projector which files have tables.
function M.configure(board)
  local lines, given = {}, board.embeddings_metadata
  for _, layer in ipairs(embeddings_of(board.model)) do
    lines[#lines + 1] = ('embeddings {\n  tensor_name: "%s"\n  tensor_path: "train/%s"\n'):format(layer.name,
      file_name(layer))
    local labels = type(given) == "table" and given[layer.name] or type(given) == "string" and given
    if labels then lines[#lines + 1] = ('  metadata_path: "%s"\n'):format(labels) end
    lines[#lines + 1] = "}\n"
  end
  core.make_dir(board.log_dir)
  put(board.log_dir .. "/projector_config.pbtxt", table.concat(lines))
end

--- The first rows of a table, a line each.
local function write_table(board, layer)
  local v = layer.embeddings
  local rows = math.min(v.shape[1], ROWS)
  local x = rows == v.shape[1] and v:read() or v:sparse_read(tm.range(0, rows, 1, "int64"))
  local lines = {}
  for i, row in ipairs(x:totable()) do
    for k, n in ipairs(row) do row[k] = ("%.6g"):format(n) end
    lines[i] = table.concat(row, "\t")
  end
  core.make_dir(board.log_dir .. "/train")
  put(("%s/train/%s"):format(board.log_dir, file_name(layer)), table.concat(lines, "\n") .. "\n")
end

-- --- all of an epoch ---

local function draw(board, w, name, v, epoch)
  if v.dtype == "string" or v.dtype == "bool" then return end
  local x = fetch(v)
  w:histogram(name .. "/histogram", x, epoch)
  local image = board.write_images and picture(x)
  if image then w:image(name .. "/image", image, epoch) end
end

--- Histograms of all weights, tables of embeddings.
function M.write(board, w, epoch, histograms, tables)
  if histograms then
    local list = board.model.weights
    local names = named(list)
    for i, v in ipairs(list) do draw(board, w, names[i], v, epoch) end
  end
  if tables then
    M.configure(board) -- layers may have been built since
    for _, layer in ipairs(embeddings_of(board.model)) do write_table(board, layer) end
  end
end

return M
