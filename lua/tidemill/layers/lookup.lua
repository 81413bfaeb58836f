--- Layers from words and numbers to ids: StringLookup, IntegerLookup, Hashing.
---
--- A vocabulary is a hash table in two tensors (core/graph/ops_lookup.c), constants of
--- the traced graph, so a lookup in dataset:map runs on any worker.

local Layer = require "tidemill.layers.base"
local core = require "tidemill.core"
local encode = require "tidemill.layers.encode"
local errors = require "tidemill.errors"
local kinds = require "tidemill.lib.kinds"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

local M = {}

local MOST_OOV = 1048576 -- each is listed

-- --- vocabularies ---

--- Lines of a file; a last line without an end counts.
local function read_file(where, path)
  local f, why = io.open(path, "r")
  if not f then errors.raise("not_found", "%s: vocabulary: %s", where, why) end
  local words = {}
  for line in f:lines() do words[#words + 1] = (line:gsub("\r$", "")) end
  f:close()
  return words
end

local function check_words(where, words, kind)
  local seen = {}
  for i, w in ipairs(words) do
    if type(w) ~= kind or (kind == "number" and w ~= math.floor(w)) then
      errors.raise("invalid_argument", "%s: entry %d of the vocabulary is no %s", where, i,
        kind == "number" and "integer" or kind)
    end
    if seen[w] then
      errors.raise("invalid_argument", "%s: the vocabulary has %q twice, at %d and %d", where, tostring(w),
        seen[w], i)
    end
    seen[w] = i
  end
  return words
end

--- Words by falling count, equal counts by falling order, as Keras has it.
local function by_count(counts)
  local words = {}
  for w in pairs(counts) do words[#words + 1] = w end
  table.sort(words, function(a, b)
    if counts[a] ~= counts[b] then return counts[a] > counts[b] end
    return a > b
  end)
  return words
end

local function count_into(counts, x)
  if type(x) == "table" then
    for _, v in ipairs(x) do count_into(counts, v) end
  else
    counts[x] = (counts[x] or 0) + 1
  end
end

-- --- the common part ---

---@class tm.layers.IndexLookup : tm.layers.Layer
local IndexLookup = Layer:extend("IndexLookup")

local known = {
  "max_tokens", "vocabulary", "mask_token", "oov_token", num_oov_indices = 1, output_mode = "int",
  pad_to_max_tokens = false,
}

local function with(defaults)
  local all = {}
  for k, v in pairs(known) do all[k] = v end
  for k, v in pairs(defaults) do all[k] = v end
  return all
end

function IndexLookup:configure(given, defaults)
  local o = self:options(given, with(defaults))
  options.count(self.class_name, "num_oov_indices", o.num_oov_indices, 0)
  options.number(self.class_name, "num_oov_indices", o.num_oov_indices, 0, MOST_OOV)
  self.num_oov_indices, self.max_tokens, self.mask_token = o.num_oov_indices, o.max_tokens, o.mask_token
  self.oov_token, self.output_mode, self.pad_to_max_tokens = o.oov_token, o.output_mode, o.pad_to_max_tokens
  encode.check(self.class_name, o.output_mode, { "int", "one_hot", "multi_hot", "count" })
  if self.pad_to_max_tokens and not self.max_tokens then
    errors.raise("invalid_argument", "%s: pad_to_max_tokens needs max_tokens", self.class_name)
  end
  rawset(self, "input_dtype", self.key_dtype)
  if o.vocabulary ~= nil then self:set_vocabulary(o.vocabulary) end
end

--- What stands before the words: the mask (with ids as output), then the unknown.
function IndexLookup:special()
  local list = {}
  if self.mask_token ~= nil and self.output_mode == "int" then list[1] = self.mask_token end
  for _ = 1, self.num_oov_indices do list[#list + 1] = self.oov_token end
  return list
end

local function without_special(self, words)
  local special, skip = self:special(), 0
  for i, s in ipairs(special) do
    if words[i] ~= s then break end
    skip = i
  end
  if skip < #special or skip == 0 then return words end
  local out = {}
  for i = skip + 1, #words do out[#out + 1] = words[i] end
  return out
end

--- Give the vocabulary: a list, a tensor or the path of a file with a word a line.
function IndexLookup:set_vocabulary(words)
  if type(words) == "string" then words = self:parse(read_file(self.class_name, words)) end
  if values.is_tensor(words) then words = words:totable() end
  if type(words) ~= "table" then
    errors.raise("invalid_argument", "%s: vocabulary is a list or the path of a file, got %s", self.class_name,
      kinds.a(words))
  end
  words = check_words(self.class_name, without_special(self, words), self.key_kind)
  local most = self.max_tokens and self.max_tokens - #self:special()
  if most and #words > most then
    errors.raise("invalid_argument", "%s: %d words and %d special tokens are more than max_tokens = %d",
      self.class_name, #words, #self:special(), self.max_tokens)
  end
  rawset(self, "_words", words)
  rawset(self, "_table", nil)
end

--- Learn the vocabulary: ds is a dataset of words (or of tensors of them), a tensor or a
--- list.
function IndexLookup:adapt(ds)
  local counts = {}
  encode.each(self.class_name, ds, self.key_dtype, function(x) count_into(counts, x:totable()) end)
  counts[self.oov_token] = nil
  if self.mask_token ~= nil then counts[self.mask_token] = nil end
  local words = by_count(counts)
  local most = self.max_tokens and self.max_tokens - #self:special() or #words
  for i = #words, most + 1, -1 do words[i] = nil end
  self:set_vocabulary(words)
end

--- All words in the order of their ids, from 0; special tokens first.
function IndexLookup:get_vocabulary(given)
  local o = options.read("get_vocabulary", given, { include_special_tokens = true })
  local out = o.include_special_tokens and self:special() or {}
  for _, w in ipairs(rawget(self, "_words") or {}) do out[#out + 1] = w end
  return out
end

--- Number of ids.
function IndexLookup:vocabulary_size() return #self:get_vocabulary() end

--- What checkpoints keep of the layer.
IndexLookup.adapted = { "vocabulary" }

function IndexLookup:get_adapted()
  local words = rawget(self, "_words")
  if not words then return nil end
  return core.eagerly(function()
    if #words > 0 then return tm.tensor(words, self.key_dtype) end
    return tm.tensor({ self.key_kind == "string" and "" or 0 }, self.key_dtype):narrow(1, 1, 0)
  end)
end

function IndexLookup:set_adapted(_, x)
  if x.dtype ~= self.key_dtype then
    errors.raise("invalid_argument", "%s: its vocabulary is of %s, the checkpoint's is %s", self.name, self.key_dtype,
      x.dtype)
  end
  rawset(self, "_words", check_words(self.class_name, x:totable(), self.key_kind))
  rawset(self, "_table", nil)
end

--- Two tensors, keys and values, for the op `lookup`.
local function table_of(self)
  local t = rawget(self, "_table")
  if t then return t end
  local words = rawget(self, "_words")
  if not words then
    errors.raise("failed_precondition", "%s has no vocabulary; give vocabulary = {...} or call adapt(dataset)",
      self.name)
  end
  local keys, ids, first = {}, {}, #self:special()
  for i, w in ipairs(words) do keys[i], ids[i] = w, first + i - 1 end
  if self.mask_token ~= nil and self.output_mode == "int" then
    keys[#keys + 1], ids[#ids + 1] = self.mask_token, 0
  end
  t = core.eagerly(function()
    local empty = #keys == 0
    local k = empty and tm.zeros({ 0 }, self.key_dtype) or tm.tensor(keys, self.key_dtype)
    local v = empty and tm.zeros({ 0 }, "int64") or tm.tensor(ids, "int64")
    local slots, slot_values = core.ops.lookup_table(k, v)
    return { keys = slots, values = slot_values }
  end)
  rawset(self, "_table", t)
  return t
end

local function ids_of(self, x)
  local t, n = table_of(self), self.num_oov_indices
  return core.ops.lookup(x, {
    keys = t.keys, values = t.values, num_oov = n, oov_first = #self:special() - n, strict = n == 0,
  })
end

function IndexLookup:call(x)
  local ids = ids_of(self, values.cast(x, self.key_dtype))
  if self.output_mode == "int" then return ids end
  local depth = self.pad_to_max_tokens and self.max_tokens or self:vocabulary_size()
  return encode.apply(ids, depth, self.output_mode)
end

-- --- the layers ---

--- StringLookup{ vocabulary, num_oov_indices = 1, mask_token, oov_token = "[UNK]",
--- max_tokens, output_mode = "int" | "one_hot" | "multi_hot" | "count" }
---@class tm.layers.StringLookup : tm.layers.IndexLookup
M.StringLookup = IndexLookup:extend("StringLookup")
M.StringLookup.key_dtype, M.StringLookup.key_kind = "string", "string"

function M.StringLookup:init(given) self:configure(given, { oov_token = "[UNK]" }) end

function M.StringLookup.parse(_, lines) return lines end

--- IntegerLookup: the same for integers, oov_token = -1.
---@class tm.layers.IntegerLookup : tm.layers.IndexLookup
M.IntegerLookup = IndexLookup:extend("IntegerLookup")
M.IntegerLookup.key_dtype, M.IntegerLookup.key_kind = "int64", "number"

function M.IntegerLookup:init(given) self:configure(given, { oov_token = -1 }) end

function M.IntegerLookup:parse(lines)
  local out = {}
  for i, line in ipairs(lines) do
    out[i] = tonumber(line) or errors.raise("invalid_argument", "%s: line %d of the vocabulary is no number: %q",
      self.class_name, i, line)
  end
  return out
end

--- Hashing{ num_bins, mask_value }: the same id for the same word, without a vocabulary.
---@class tm.layers.Hashing : tm.layers.Layer
M.Hashing = Layer:extend("Hashing")

function M.Hashing:init(given)
  local o = self:options(given, { "num_bins", "mask_value", output_mode = "int" })
  self.num_bins = options.count("Hashing", "num_bins", options.need("Hashing", o, "num_bins"), 1)
  self.mask_value, self.output_mode = o.mask_value, o.output_mode
  encode.check("Hashing", o.output_mode, { "int", "one_hot", "multi_hot", "count" })
end

function M.Hashing:call(x)
  local words = x.dtype == "string" and x or tm.strings.as_string(x)
  local ids
  if self.mask_value == nil then
    ids = tm.strings.to_hash_bucket(words, self.num_bins)
  else
    local masked = tm.equal(x, self.mask_value)
    ids = tm.strings.to_hash_bucket(words, math.max(1, self.num_bins - 1)) + 1
    ids = tm.where(masked, tm.zeros_like(ids), ids)
  end
  if self.output_mode == "int" then return ids end
  return encode.apply(ids, self.num_bins, self.output_mode)
end

return M
