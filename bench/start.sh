#!/bin/sh
# From process start to the end of the first step, and the peak memory of the process.
set -eu
cd "$(dirname "$0")/.."
script=$(mktemp)
trap 'rm -f "$script"' EXIT
cat >"$script" <<'LUA'
local tm = require "tidemill"
local strategy = tm.distribute.ParameterServerStrategy(tm.distribute.resolver { workers = 3, ps = 2 })
local v = strategy:scope(function() return tm.Variable(0) end)
local coordinator = tm.distribute.ClusterCoordinator(strategy)
coordinator:schedule(function() v:assign_add(1) end)
coordinator:join()
coordinator:close()
LUA
for how in "" "launch --workers 3 --ps 2"; do
  t=$(date +%s%N)
  # shellcheck disable=SC2086
  build/tidemill $how "$script"
  echo "RESULT {\"bench\": \"start\", \"how\": \"${how:-in process}\", \"ms\": $((($(date +%s%N) - t) / 1000000))}"
done
