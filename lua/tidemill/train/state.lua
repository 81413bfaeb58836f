--- The list of a directory's checkpoints: the file `checkpoint`, names relative.

local core = require "tidemill.core"

local M = {}

--- Directory and name of a path.
function M.split(path)
  local dir, name = path:match "^(.*)/([^/]+)$"
  if not dir then return ".", path end
  return dir == "" and "/" or dir, name
end

function M.join(dir, name)
  if dir == "." then return name end
  return dir == "/" and "/" .. name or dir .. "/" .. name
end

--- Is there a checkpoint of this path?
M.exists = core.ckpt.exists

--- { [i] = { name, time }, latest, preserved }; nil and the error.
M.read = core.ckpt.state_read

--- Add a name, and take others off, under a lock: what other processes listed stays.
--- change(dir, { add, time, preserved, gone }): the list now; nil and the error.
M.change = core.ckpt.state_change

--- Path of the latest checkpoint, nil when there is none (or its list cannot be read,
--- which is logged).
function M.latest(dir)
  local list, err = M.read(dir)
  if not list then
    if err.code ~= "not_found" then
      core.log("warn", ("latest_checkpoint: %s"):format(tostring(err)))
    end
    return nil
  end
  local path = list.latest and M.join(dir, list.latest)
  return path and M.exists(path) and path or nil
end

return M
