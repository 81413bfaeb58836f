std = "min"
max_line_length = 120
self = false
files["spec"] = { std = "lua54+busted" }
files["spec/tools"] = { std = "lua54" }
files["examples"] = { std = "lua54", globals = { "tidemill" } }
files["bench"] = { std = "lua54" }
files["lua/tidemill/meta"] = { ignore = { "2..", "1.." } }
