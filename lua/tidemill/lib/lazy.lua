--- The module `tidemill` itself, for modules that it loads: looked up when used, so
--- that neither has to wait for the other.

return setmetatable({}, {
  __index = function(_, key) return require("tidemill")[key] end,
})
