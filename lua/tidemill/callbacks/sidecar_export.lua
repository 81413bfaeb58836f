--- tm.callbacks.SidecarEvaluatorModelExport: a SidecarEvaluator keeps the best model that
--- it has seen.
---
---     tm.distribute.SidecarEvaluator{ ..., callbacks = {
---       tm.callbacks.SidecarEvaluatorModelExport("runs/best-{epoch}", "runs/ckpt/ckpt-{epoch}",
---         { monitor = "accuracy" }) } }

local ModelCheckpoint = require "tidemill.callbacks.model_checkpoint"
local errors = require "tidemill.errors"
local options = require "tidemill.lib.options"
local state = require "tidemill.train.state"

local NAME = "SidecarEvaluatorModelExport"

---@class tm.callbacks.SidecarEvaluatorModelExport : tm.callbacks.ModelCheckpoint
local Export = ModelCheckpoint:extend(NAME)

--- SidecarEvaluatorModelExport(export_filepath, checkpoint_filepath, { monitor = "loss", mode,
--- save_weights_only, verbose, initial_value_threshold }): {epoch} in export_filepath is the
--- number that the checkpoint has at this place of checkpoint_filepath.
function Export:init(export_filepath, checkpoint_filepath, given)
  options.path(NAME, "the path of the checkpoints second", checkpoint_filepath)
  local o = { save_best_only = true, monitor = "loss" }
  for k, v in pairs(given or {}) do o[k] = v end
  ModelCheckpoint.init(self, export_filepath, o)
  if state.split(self.filepath) == state.split(checkpoint_filepath) then
    errors.raise("invalid_argument", "%s: exports in the directory of the checkpoints would be taken for such; choose "
      .. "another directory", NAME)
  end
  local _, name = state.split(checkpoint_filepath)
  local pattern = name:gsub("[%^$()%%.%[%]*+%-?]", "%%%0"):gsub("{epoch[^}]*}", "(%%d+)", 1):gsub("{[^}]*}", ".-")
  rawset(self, "_pattern", "^" .. pattern .. "$")
end

--- The evaluator says which checkpoint it has loaded.
function Export:set_checkpoint(path)
  local _, name = state.split(path)
  rawset(self, "_number", tonumber(name:match(self._pattern) or name:match "%-(%d+)$") or 0)
end

--- What others that share the work found best counts too.
function Export:on_test_begin() self:on_train_begin() end

function Export:on_test_end(logs) self:on_epoch_end(rawget(self, "_number") or 0, logs) end

return Export
