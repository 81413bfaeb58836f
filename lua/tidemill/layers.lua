--- tm.layers: what models are made of.

local closed = require "tidemill.lib.closed"

local M = { Layer = require "tidemill.layers.base", Dense = require "tidemill.layers.dense",
  Embedding = require "tidemill.layers.embedding" }

for _, name in ipairs { "shape", "simple", "merge", "lookup", "numeric", "conv", "pooling", "normalize" } do
  for key, class in pairs(require("tidemill.layers." .. name)) do M[key] = class end
end

--- Those that take one tensor say so to structures.
for _, name in ipairs { "Dense", "Embedding", "Flatten", "Reshape", "Dropout", "Conv1D", "Conv2D", "DepthwiseConv2D",
  "MaxPooling1D", "MaxPooling2D", "AveragePooling1D", "AveragePooling2D", "GlobalAveragePooling1D",
  "GlobalAveragePooling2D", "GlobalMaxPooling1D", "GlobalMaxPooling2D", "UpSampling2D", "ZeroPadding2D",
  "BatchNormalization", "LayerNormalization" } do
  M[name].one_input = true
end

return closed.list(M, "layer")
