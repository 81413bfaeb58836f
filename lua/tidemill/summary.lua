--- tm.summary: logs that TensorBoard shows.

local Layer = require "tidemill.layers.base"
local class = require "tidemill.lib.class"
local core = require "tidemill.core"
local errors = require "tidemill.errors"
local func = require "tidemill.func"
local graphdef = require "tidemill.lib.graphdef"
local hparams = require "tidemill.lib.hparams"
local kinds = require "tidemill.lib.kinds"
local nest = require "tidemill.lib.nest"
local options = require "tidemill.lib.options"

local BUCKETS, MOST_BUCKETS = 30, 512
local IMAGES, MOST_IMAGES = 3, 64
local FLUSH_MS = 2000

local M = {}

---@class tm.summary.Writer
---@field path string  its file
local Writer = {}
Writer.__index = Writer

local function bad(...) errors.raise("invalid_argument", ...) end

--- The C writer, once what all methods take is right.
local function handle(self, name, tag)
  local h = self._handle
  if not h then
    errors.raise("failed_precondition", "%s: the writer of \"%s\" is closed; make another by create_file_writer",
      name, self.directory)
  end
  if type(tag) ~= "string" then bad("%s: a tag is a string, got %s", name, kinds.a(tag)) end
  if core.tracing() then
    errors.raise("failed_precondition", "%s \"%s\" in a traced function, which Lua runs once for all steps; return the "
      .. "value and log it outside", name, tag)
  end
  return h
end

--- A number, or what holds one (a tensor, a variable), as a number.
local function number(name, tag, what, x)
  if type(x) == "number" then return x end
  local held = (type(x) == "table" or type(x) == "userdata") and core.as_value(x)
  if held and held:size() == 1 and held.dtype ~= "string" then
    x = held:item()
    return type(x) == "boolean" and (x and 1 or 0) or x
  end
  return bad("%s \"%s\": %s must be a number, got %s", name, tag, what, held and core.typekey(held) or kinds.a(x))
end

local function step_of(name, tag, step)
  local n = number(name, tag, "the step", step)
  if n ~= math.floor(n) or n < -2 ^ 63 or n >= 2 ^ 63 then
    bad("%s \"%s\": the step must be a whole number, got %s", name, tag, tostring(n))
  end
  return n
end

--- A number by step; NaN and infinities too.
---@param tag string   "train/loss"
---@param value number|tm.Tensor
---@param step integer
function Writer:scalar(tag, value, step)
  local h = handle(self, "scalar", tag)
  h:scalar(tag, step_of("scalar", tag, step), number("scalar", tag, "the value", value))
end

--- How the elements of a tensor are spread; those that are not finite are left out.
---@param given? { buckets: integer }  30
function Writer:histogram(tag, tensor, step, given)
  local h = handle(self, "histogram", tag)
  local o = options.read("histogram", given, { buckets = BUCKETS })
  if options.count("histogram", "buckets", o.buckets, 1) > MOST_BUCKETS then
    bad("histogram \"%s\": at most %d buckets", tag, MOST_BUCKETS)
  end
  h:histogram(tag, step_of("histogram", tag, step), tensor, o.buckets)
end

--- (height, width), (height, width, channels) or (images, height, width, channels) of
--- uint8, or of floats from 0 to 1.
---@param given? { max_outputs: integer }  3
function Writer:image(tag, tensor, step, given)
  local h = handle(self, "image", tag)
  local o = options.read("image", given, { max_outputs = IMAGES })
  if options.count("image", "max_outputs", o.max_outputs, 1) > MOST_IMAGES then
    bad("image \"%s\": max_outputs is at most %d", tag, MOST_IMAGES)
  end
  h:image(tag, step_of("image", tag, step), tensor, o.max_outputs)
end

--- Markdown: a string, a list of strings, a table of them.
function Writer:text(tag, text, step)
  local h = handle(self, "text", tag)
  h:text(tag, step_of("text", tag, step), text)
end

--- What a graph is drawn of: a function, or a model as a function of its inputs.
local function drawn(what, ...)
  if func.is(what) then return what, { n = select("#", ...), ... } end
  if type(what) ~= "table" or not class.is(what, Layer) then
    bad("graph: it takes a tm.func, a model or a layer, got %s", kinds.a(what))
  end
  local args = { n = select("#", ...), ... }
  if args.n == 0 then
    local inputs = rawget(what, "inputs")
    if inputs == nil then bad("graph: %s has no inputs of its own; give an example of them", what.name) end
    args = { n = 1, nest.map(function(s) return func.placeholder { dtype = s.dtype, shape = s.shape } end, inputs) }
  end
  return func.func(function(x) return what(x) end, { name = what.name }), args
end

--- The graph of a traced function for these arguments, or of a model (for an example of
--- its inputs, which a model of tm.Input does not need): "Graphs" in TensorBoard shows
--- one a run, the newest.
function Writer:graph(what, ...)
  local h = handle(self, "graph", "")
  local fn, args = drawn(what, ...)
  local graph, scopes = fn:_drawn(args)
  h:graph(graphdef.bytes(graph, scopes))
end

--- The values of hyperparameters of this run: numbers, strings, booleans by name.  Each
--- run has a directory of its own; below it may be others with its numbers ("train").
---@param values table<string, number|string|boolean>
---@param given? { trial_id: string, start_time: number }
function Writer:hparams(values, given)
  local h = handle(self, "hparams", "")
  local o = options.read("hparams", given, { "trial_id", "start_time" })
  h:plugin("_hparams_/session_start_info", 0, "hparams", hparams.start(values, o))
end

--- That the run of `hparams` is over: "success" or "failure".
function Writer:hparams_end(status)
  local h = handle(self, "hparams_end", "")
  h:plugin("_hparams_/session_end_info", 0, "hparams", hparams.finish(status or "success"))
end

--- For the directory above all runs, if names, domains and metrics are to be said before:
--- hparams = { { name = "lr", min = 0, max = 1 }, { name = "units", values = { 16, 32 } } },
--- metrics = { { tag = "epoch_loss", group = "validation", name = "loss" } }.
function Writer:hparams_config(given)
  local h = handle(self, "hparams_config", "")
  local o = options.read("hparams_config", given, { "description", hparams = {}, metrics = {} })
  h:plugin("_hparams_/experiment", 0, "hparams", hparams.experiment(o))
end

--- Write what waits; TensorBoard sees it then.
function Writer:flush()
  if self._handle then self._handle:flush() end
end

--- Twice is harmless.
function Writer:close()
  local h = self._handle
  self._handle = nil
  if h then h:close() end
end
Writer.__close = Writer.close

function Writer:__tostring()
  return ("FileWriter(%q%s)"):format(self.path, self._handle and "" or ", closed")
end

--- A writer with an event file of its own in a directory, which is made where it is
--- missing; many writers may share one.  Records wait until there are 256 KB of them, or
--- one comes `flush_millis` after the last flush.
---@param directory string
---@param given? { flush_millis: number, filename_suffix: string }
---@return tm.summary.Writer
function M.create_file_writer(directory, given)
  if type(directory) ~= "string" then bad("create_file_writer takes a directory, got %s", kinds.a(directory)) end
  local o = options.read("create_file_writer", given, { flush_millis = FLUSH_MS, filename_suffix = "" })
  options.number("create_file_writer", "flush_millis", o.flush_millis, 0, 1e9)
  if type(o.filename_suffix) ~= "string" then
    bad("create_file_writer: filename_suffix must be a string, got %s", kinds.a(o.filename_suffix))
  end
  local h = core.event_writer(directory, o.filename_suffix, o.flush_millis)
  return setmetatable({ _handle = h, directory = directory, path = h:path() }, Writer)
end

return M
