#!/bin/bash
# The Python package `safetensors` reads what tidemill writes, and the other way round.
# Usage: B=build spec/interop/safetensors.sh   (`make interop`); PYTHON names an
# interpreter that has the packages safetensors and numpy.
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
PYTHON=${PYTHON:-python3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$PYTHON" -c 'import numpy, safetensors' 2>/dev/null || {
  echo "interop: skipped: $PYTHON lacks the packages safetensors and numpy; set PYTHON" >&2
  exit 0
}
"$B/tidemill" spec/interop/safetensors.lua write "$dir"
"$B/tidemill" launch --workers 1 --ps 2 spec/interop/safetensors_ps.lua "$dir" >"$dir/log" 2>&1 || {
  cat "$dir/log" >&2
  exit 1
}
"$PYTHON" spec/interop/safetensors_check.py "$dir"
"$B/spec/test_ckpt_interop" "$dir/python.safetensors"
