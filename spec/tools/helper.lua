-- Loaded by busted before each spec: garbage is collected eagerly, so that a handle
-- whose life is wrong fails here and not on a user's machine.
if collectgarbage("count") and _VERSION == "Lua 5.4" then collectgarbage("generational") end
return true
