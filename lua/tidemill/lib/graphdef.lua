--- A graph as TensorFlow's GraphDef, for TensorBoard.
---
--- Nodes are named by the scopes (layers, the optimizer, "gradients") in which they were
--- made; a scope is a range of nodes of the trace.

local core = require "tidemill.core"
local pb = require "tidemill.lib.protobuf"
local variable = require "tidemill.variable"

local M = {}

-- DataType
local types = {
  float32 = 1, float64 = 2, int32 = 3, uint8 = 4, int16 = 5, int8 = 6, string = 7, int64 = 9, bool = 10, bfloat16 = 14,
  uint16 = 17, float16 = 19, uint32 = 22, uint64 = 23,
}

-- What TensorBoard knows under another name.
local op_names = { arg = "Placeholder", const = "Const" }

--- One line of a graph's text: number, op, inputs, attributes, types.
local function parse(line)
  local number, op, rest = line:match "^%s*%%(%d+) = ([%w_.]+)(.*)$"
  if not number then return nil end
  local inputs, after = rest:match "^%(([^)]*)%)(.*)$"
  local attributes, type_text = (after or rest):match "^(.*) %-> (.*)$"
  local node = { number = tonumber(number), op = op, inputs = {}, attributes = attributes or "", types = {} }
  for from, out in (inputs or ""):gmatch "%%(%d+)%.?(%d*)" do
    node.inputs[#node.inputs + 1] = { tonumber(from), tonumber(out) or 0 }
  end
  for dtype, shape in (type_text or ""):gmatch "([%w_]+) %(([^)]*)%)" do
    local dims = {}
    for d in shape:gmatch "[%d?]+" do dims[#dims + 1] = d == "?" and -1 or tonumber(d) end
    node.types[#node.types + 1] = { dtype = dtype, shape = dims }
  end
  return node
end

local function parse_all(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do
    list[#list + 1] = parse(line)
  end
  return list
end

--- What the name of a node may have.
local function clean(name) return (name:gsub("[^%w_./%-]", "_"):gsub("^[^%w.]", "x")) end

--- The scope of each node: ranges lie in each other and come in the order of their ends,
--- so the first that holds a node is the innermost, and the path is its own.
local function scope_of(scopes, number)
  local best
  for _, s in ipairs(scopes) do
    if number >= s.from and number < s.to and (not best or s.to - s.from < best.to - best.from) then best = s end
  end
  return best and best.path .. "/" or ""
end

local function shape_message(dims)
  local out = {}
  for i, d in ipairs(dims) do out[i] = pb.message(2, pb.int(1, d)) end
  return table.concat(out)
end

local function attribute(name, value) return pb.message(5, pb.text(1, name) .. pb.message(2, value)) end

local function attributes_of(node)
  local shapes = {}
  for i, t in ipairs(node.types) do shapes[i] = pb.message(7, shape_message(t.shape)) end
  local out = attribute("_output_shapes", pb.message(1, table.concat(shapes)))
  local dtype = node.types[1] and types[node.types[1].dtype]
  if dtype then out = out .. attribute("dtype", pb.int(6, dtype)) end
  if node.attributes ~= "" then out = out .. attribute("attributes", pb.text(2, node.attributes:sub(1, 4096))) end
  return out
end

--- The variable that a node reads or writes, by name.
local function variable_of(node)
  local uid = node.attributes:match "uid=(%d+)"
  return uid and variable.name_of(tonumber(uid))
end

local function base_name(node)
  local name = variable_of(node)
  if not name then return node.op end
  return ("%s/%s"):format(name:match "[^/]+$", node.op)
end

local function named(list, scopes)
  local names, used = {}, {}
  for _, node in ipairs(list) do
    local name = clean(scope_of(scopes, node.number) .. base_name(node))
    local n = used[name] or 0
    used[name] = n + 1
    if n > 0 then
      repeat
        node.name = ("%s_%d"):format(name, n)
        n = n + 1
      until not used[node.name]
      used[node.name], used[name] = 1, n
    else
      node.name = name
    end
    names[node.number] = node.name
  end
  return names
end

local function input_name(names, input)
  local name = names[input[1]] or "unknown"
  return input[2] > 0 and ("%s:%d"):format(name, input[2]) or name
end

--- Bytes of the GraphDef of a graph; scopes: { { path, from, to }, ... }.
function M.bytes(graph, scopes)
  local list = parse_all(core.graph_text(graph))
  local names = named(list, scopes)
  local out = {}
  for i, node in ipairs(list) do
    local inputs = {}
    for k, input in ipairs(node.inputs) do inputs[k] = pb.text(3, input_name(names, input)) end
    out[i] = pb.message(1, pb.text(1, node.name) .. pb.text(2, op_names[node.op] or node.op)
      .. table.concat(inputs) .. attributes_of(node))
  end
  out[#out + 1] = pb.message(4, pb.int(1, 1)) -- versions: producer 1
  return table.concat(out)
end

return M
