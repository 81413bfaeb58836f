--- model:summary(): a table of layers for people, like Keras's, and where weights live.

local errors = require "tidemill.errors"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"
local placement = require "tidemill.distribute.placement"
local text = require "tidemill.lib.text"
local values = require "tidemill.lib.values"

local M = {}

-- --- numbers and shapes ---

local function grouped(n)
  local out = ("%d"):format(n):reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (out:gsub("^,", ""))
end

--- Bytes for people: "7.97 KB".
function M.size_text(bytes)
  for _, unit in ipairs { "B", "KB", "MB", "GB", "TB" } do
    if bytes < 1024 or unit == "TB" then return ("%.2f %s"):format(bytes, unit) end
    bytes = bytes / 1024
  end
end

local function shape_text(shape)
  local t = {}
  for i, n in ipairs(shape) do t[i] = n < 0 and "None" or ("%d"):format(n) end
  return "(" .. table.concat(t, ", ") .. ")"
end

local function shapes_text(list)
  if #list == 1 then return shape_text(list[1]) end
  local t = {}
  for i, s in ipairs(list) do t[i] = shape_text(s) end
  return "[" .. table.concat(t, ", ") .. "]"
end

--- Elements and bytes of variables.
local function count(variables)
  local n, bytes = 0, 0
  for _, v in ipairs(variables) do
    n = n + values.count(v.shape)
    bytes = bytes + placement.bytes(v.shape, v.dtype)
  end
  return n, bytes
end

-- --- where variables live ---

--- "0, 1" of a set of numbers; runs of three or more as "0-7".
local function numbers_text(set)
  local list, parts, i = {}, {}, 1
  for n in pairs(set) do list[#list + 1] = n end
  table.sort(list)
  while i <= #list do
    local k = i
    while list[k + 1] == list[k] + 1 do k = k + 1 end
    if k - i >= 2 then
      parts[#parts + 1] = ("%d-%d"):format(list[i], list[k])
      i = k + 1
    else
      parts[#parts + 1] = ("%d"):format(list[i])
      i = i + 1
    end
  end
  return table.concat(parts, ", ")
end

local function ps_of(part) return tonumber((part.device or ""):match "^/job:ps/task:(%d+)$") end

--- "2 shards on ps 0, 1", "ps 1"; "" for variables of this process.
local function place_text(variables)
  local set, most = {}, 1
  for _, v in ipairs(variables) do
    most = math.max(most, #v.variables)
    for _, part in ipairs(v.variables) do
      local ps = ps_of(part)
      if ps then set[ps] = true end
    end
  end
  if next(set) == nil then return "" end
  return (most > 1 and ("%d shards on ps "):format(most) or "ps ") .. numbers_text(set)
end

--- Bytes by ps.
local function held(variables)
  local by, list = {}, {}
  for _, v in ipairs(variables) do
    for _, part in ipairs(v.variables) do
      local ps = ps_of(part)
      if ps then
        if not by[ps] then list[#list + 1] = ps end
        by[ps] = (by[ps] or 0) + placement.bytes(part.shape, v.dtype)
      end
    end
  end
  table.sort(list)
  return list, by
end

-- --- rows ---

--- Output shapes by layer, as far as symbols or calls have shown them.
local function known_shapes(model)
  local out = {}
  local function note(s)
    local node = s.node
    if node.layer and out[node.layer] then return end
    if node.layer then
      out[node.layer] = {}
      for i, o in ipairs(node.outputs) do out[node.layer][i] = o.shape end
    end
    for _, x in ipairs(nest.flatten(node.args)) do
      if values.is_symbol(x) then note(x) end
    end
  end
  if rawget(model, "outputs") ~= nil then
    for _, s in ipairs(nest.flatten(model.outputs)) do note(s) end
  end
  return out
end

--- Names of the nodes that a node takes values from.
local function sources(node)
  local list, seen = {}, {}
  for _, x in ipairs(nest.flatten(node.args)) do
    if values.is_symbol(x) and not seen[x] then
      seen[x] = true
      list[#list + 1] = x.node.layer and x.node.layer.name or x.node.name
    end
  end
  return list
end

local function layer_row(layer, shape)
  local shapes = shape[layer] or rawget(layer, "_shapes_out")
  return {
    layer = layer, name = ("%s (%s)"):format(layer.name, layer.class_name),
    shape = shapes and shapes_text(shapes) or "?",
    params = layer.built and grouped(layer:count_params()) or "not built", place = place_text(layer.weights),
    trainable = layer.trainable and "Y" or "N",
  }
end

local function node_row(node, symbol)
  local variables = symbol.variables_of(node)
  local shapes = {}
  for i, s in ipairs(node.outputs) do shapes[i] = s.shape end
  return { name = ("%s (%s)"):format(node.name, node.is_input and "InputLayer" or "Op"), shape = shapes_text(shapes),
    params = grouped((count(variables))), place = place_text(variables), trainable = "Y" }
end

--- Rows of a functional model: its inputs, then layers and ops in order, a layer once.
local function functional_rows(model, symbol)
  local rows, by_layer = {}, {}
  local shape = known_shapes(model)
  for _, s in ipairs(model._inputs) do
    local row = node_row(s.node, symbol)
    row.from = {}
    rows[#rows + 1] = row
  end
  for _, node in ipairs(model._nodes) do
    local row = node.layer and by_layer[node.layer]
    if not row then
      row = node.layer and layer_row(node.layer, shape) or node_row(node, symbol)
      row.from = {}
      rows[#rows + 1] = row
      if node.layer then by_layer[node.layer] = row end
    end
    for _, name in ipairs(sources(node)) do row.from[#row.from + 1] = name end
  end
  return rows
end

local function rows_of(model)
  if rawget(model, "_nodes") then return functional_rows(model, require "tidemill.layers.symbol") end
  local rows, shape = {}, known_shapes(model)
  for _, l in ipairs(model.layers) do rows[#rows + 1] = layer_row(l, shape) end
  return rows
end

--- Does each row take what the row before gives?
local function is_chain(rows)
  for i, row in ipairs(rows) do
    if row.from and (#row.from > 1 or (i > 1 and (#row.from == 0 or row.from[1] ~= rows[i - 1].name:match "^(.-) %(")))
    then
      return false
    end
  end
  return true
end

-- --- the table ---

local HEADS = { name = "Layer (type)", shape = "Output Shape", params = "Param #", from = "Connected to",
  place = "Placed on", trainable = "Trainable" }
local SHARES = { name = 0.42, shape = 0.38, params = 0.20, from = 0.34, place = 0.36, trainable = 0.14 }
local LENGTH = 65 -- of the three columns that are always there

--- Columns with their widths; the last ends at the length.
local function layout(keys, o)
  local sum, columns, at = 0, {}, 0
  for _, key in ipairs(keys) do sum = sum + SHARES[key] end
  local length = o.line_length or math.floor(LENGTH * sum)
  if o.positions and #o.positions ~= #keys then
    errors.raise("invalid_argument", "summary: positions has %d entries, there are %d columns", #o.positions, #keys)
  end
  local share = 0
  for i, key in ipairs(keys) do
    share = share + SHARES[key] / sum
    local ends = o.positions and o.positions[i] or i == #keys and length or math.floor(length * share)
    if o.positions and o.positions[#keys] <= 1 then ends = math.floor(length * ends) end
    columns[i] = { key = key, width = math.max(4, ends - at) }
    at = ends
  end
  return columns, length
end

--- Pieces of a cell: lists have one entry a line, long text goes on in the next.
local function pieces(x, width)
  local out = {}
  for _, s in ipairs(type(x) == "table" and x or { x or "" }) do
    for _, piece in ipairs(text.wrap(text.plain(s), width)) do out[#out + 1] = piece end
  end
  return out
end

local function write_row(say, columns, row, level)
  local cells, lines = {}, 1
  for i, c in ipairs(columns) do
    local width = c.width - (i < #columns and 2 or 0) - 1 - (i == 1 and level or 0)
    cells[i] = pieces(row[c.key], math.max(1, width))
    lines = math.max(lines, #cells[i])
  end
  for k = 1, lines do
    local line = {}
    for i, c in ipairs(columns) do
      local s = (i == 1 and ("|"):rep(level) or "") .. " " .. (cells[i][k] or "")
      line[i] = s .. (" "):rep(c.width - text.width(s))
    end
    say((table.concat(line):gsub(" +$", "")))
  end
end

local function write_rows(say, columns, rows, level, expand)
  for _, row in ipairs(rows) do
    write_row(say, columns, row, level)
    if expand and row.layer and row.layer.get_layer then
      write_rows(say, columns, rows_of(row.layer), level + 1, expand)
    end
  end
end

local function columns_of(model, rows, o)
  local keys = { "name", "shape", "params" }
  if rawget(model, "_nodes") and not is_chain(rows) then keys[#keys + 1] = "from" end
  if place_text(model.weights) ~= "" then keys[#keys + 1] = "place" end
  if o.show_trainable then keys[#keys + 1] = "trainable" end
  return layout(keys, o)
end

local function write_totals(say, model)
  local function total(what, n, bytes) say(("%s: %s (%s)"):format(what, grouped(n), M.size_text(bytes))) end
  local n, bytes = count(model.trainable_variables)
  local rest, rest_bytes = count(model.non_trainable_variables)
  total("Total params", n + rest, bytes + rest_bytes)
  total("Trainable params", n, bytes)
  total("Non-trainable params", rest, rest_bytes)
  local list, by = held(model.weights)
  for _, ps in ipairs(list) do say(("On /job:ps/task:%d: %s"):format(ps, M.size_text(by[ps]))) end
end

local function unbuilt(model)
  for _, l in ipairs(model.layers) do
    if not l.built then return true end
  end
  return false
end

--- Print it; `print_fn` takes the lines.
function M.print(model, given)
  local o = options.read("summary", given, { "line_length", "positions", print_fn = print, expand_nested = false,
    show_trainable = false })
  if o.line_length ~= nil then options.count("summary", "line_length", o.line_length, 20) end
  local say, rows = o.print_fn, rows_of(model)
  local columns, length = columns_of(model, rows, o)
  say(('Model: "%s"'):format(text.plain(model.name)))
  say(("_"):rep(length))
  write_row(say, columns, HEADS, 0)
  say(("="):rep(length))
  write_rows(say, columns, rows, 0, o.expand_nested)
  say(("="):rep(length))
  write_totals(say, model)
  if unbuilt(model) then say "Layers that are not built get their weights at the first call." end
  say(("_"):rep(length))
end

return M
