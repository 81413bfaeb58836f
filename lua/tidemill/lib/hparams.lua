--- What TensorBoard's plugin for hyperparameters keeps beside tags.

local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local pb = require "tidemill.lib.protobuf"

local M = {}

local TYPES = { string = 1, boolean = 2, number = 3 } -- DataType
local STATUS = { success = 1, failure = 2 }

local function sorted(t)
  local names = {}
  for name in pairs(t) do
    if type(name) ~= "string" then
      errors.raise("invalid_argument", "hparams: values by name, as in { units = 16 }, not by %s", tostring(name))
    end
    names[#names + 1] = name
  end
  table.sort(names)
  return names
end

--- google.protobuf.Value
local function value(name, x)
  local t = type(x)
  if t == "number" then return pb.double(2, x) end
  if t == "string" then return pb.text(3, x) end
  if t == "boolean" then return pb.bool(4, x) end
  return errors.raise("invalid_argument", 'hparams: "%s" must be a number, a string or a boolean, got %s', name, t)
end

--- HParamsPluginData around one of its messages.
local function data(field, message) return pb.int(1, 0) .. pb.message(field, message) end

--- That a run with these values begins.
function M.start(values, o)
  if type(values) ~= "table" then
    errors.raise("invalid_argument", "hparams takes a table of values by name, got %s", kinds.a(values))
  end
  local parts, texts = {}, {}
  for i, name in ipairs(sorted(values)) do
    parts[i] = pb.message(1, pb.text(1, name) .. pb.message(2, value(name, values[name])))
    texts[i] = ("%s=%s"):format(name, tostring(values[name]))
  end
  local group = o.trial_id or table.concat(texts, ",")
  return data(3, table.concat(parts) .. pb.text(4, group) .. pb.double(5, o.start_time or os.time()))
end

--- That it is over.
function M.finish(status)
  if not STATUS[status] then options.unknown("hparams_end", "status", status, { "success", "failure" }) end
  return data(4, pb.int(1, STATUS[status]) .. pb.double(2, os.time()))
end

local function hparam(given)
  local o = options.read("hparams_config", given, { "name", "values", "min", "max", "display_name", "description" })
  local name = options.need("hparams_config", o, "name")
  local domain, kind = "", "number"
  if o.values then
    local list = {}
    for i, x in ipairs(o.values) do list[i], kind = pb.message(1, value(name, x)), type(x) end
    domain = pb.message(5, table.concat(list))
  elseif o.min and o.max then
    domain = pb.message(6, pb.double(1, o.min) .. pb.double(2, o.max))
  end
  return pb.message(4, pb.text(1, name) .. pb.text(2, o.display_name) .. pb.text(3, o.description)
    .. pb.int(4, TYPES[kind]) .. domain)
end

local function metric(given)
  local o = options.read("hparams_config", given, { "tag", "name", "description", group = "" })
  return pb.message(5, pb.message(1, pb.text(1, o.group) .. pb.text(2, options.need("hparams_config", o, "tag")))
    .. pb.text(3, o.name) .. pb.text(4, o.description))
end

--- What there is to vary and to look at.
function M.experiment(o)
  local parts = { pb.text(1, o.description), pb.double(3, os.time()) }
  for _, x in ipairs(o.hparams) do parts[#parts + 1] = hparam(x) end
  for _, x in ipairs(o.metrics) do parts[#parts + 1] = metric(x) end
  return data(2, table.concat(parts))
end

return M
