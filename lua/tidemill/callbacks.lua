--- tm.callbacks: what happens on the way of a fit.
---
---     model:fit(data, { epochs = 20, callbacks = {
---       tm.callbacks.EarlyStopping{ monitor = "val_loss", patience = 3 },
---       { on_epoch_end = function(cb, epoch, logs) print(epoch, logs.loss) end } } })
---
--- Each is loaded when it is first used.

local closed = require "tidemill.lib.closed"

local files = {
  Callback = "callback", History = "history", EarlyStopping = "early_stopping",
  LearningRateScheduler = "learning_rate_scheduler", ReduceLROnPlateau = "reduce_lr_on_plateau",
  CSVLogger = "csv_logger", TerminateOnNaN = "terminate_on_nan", LambdaCallback = "lambda_callback",
  ModelCheckpoint = "model_checkpoint", BackupAndRestore = "backup_and_restore", ProgbarLogger = "progbar",
  TensorBoard = "tensorboard", SidecarEvaluatorModelExport = "sidecar_export",
}

local M = {}

--- The names there are, sorted.
function M.names()
  local out = {}
  for name in pairs(files) do out[#out + 1] = name end
  table.sort(out)
  return out
end

return closed.list(M, "callback", M.names, function(name)
  if not files[name] then return nil end
  local c = require("tidemill.callbacks." .. files[name])
  M[name] = c
  return c
end)
