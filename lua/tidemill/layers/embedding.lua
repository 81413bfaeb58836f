--- Embedding: the row of a table for each id.  Only the rows asked for travel.

local Layer = require "tidemill.layers.base"
local options = require "tidemill.lib.options"
local values = require "tidemill.lib.values"
local tm = require "tidemill.lib.lazy"

---@class tm.layers.Embedding : tm.layers.Layer
local Embedding = Layer:extend("Embedding")

Embedding.input_dtype = "int64"

--- Embedding{ input_dim, output_dim, embeddings_initializer = "uniform", ... }; ids
--- count from 0.
function Embedding:init(given)
  local o = self:options(given, {
    "input_dim", "output_dim", "embeddings_regularizer", "embeddings_constraint", "input_length",
    embeddings_initializer = "uniform",
  })
  self.input_dim = options.count("Embedding", "input_dim", options.need("Embedding", o, "input_dim"), 1)
  self.output_dim = options.count("Embedding", "output_dim", options.need("Embedding", o, "output_dim"), 1)
  if o.input_length and not self.input_shape then rawset(self, "input_shape", { o.input_length }) end
  rawset(self, "_options", o)
end

function Embedding:build()
  local o = self._options
  self.embeddings = self:add_weight {
    name = "embeddings", shape = { self.input_dim, self.output_dim }, initializer = o.embeddings_initializer,
    regularizer = o.embeddings_regularizer, constraint = o.embeddings_constraint,
  }
end

function Embedding:call(ids)
  if not values.is_integer(ids.dtype) then ids = tm.cast(ids, "int64") end
  return tm.nn.embedding_lookup(self.embeddings, ids)
end

return Embedding
