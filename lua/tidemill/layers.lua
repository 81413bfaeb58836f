--- tm.layers: what models are made of.

local M = { Layer = require "tidemill.layers.base", Dense = require "tidemill.layers.dense",
  Embedding = require "tidemill.layers.embedding" }

for _, name in ipairs { "shape", "simple", "merge", "lookup", "numeric", "conv", "pooling", "normalize" } do
  for key, class in pairs(require("tidemill.layers." .. name)) do M[key] = class end
end

return M
