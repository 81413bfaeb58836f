#!/bin/bash
# The first steps of examples' models beside the same models in tf-keras.
# Usage: B=build spec/interop/curves.sh [SVG]   (`make interop`); PYTHON names an interpreter
# that has the packages tensorflow and tf-keras.
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
PYTHON=${PYTHON:-python3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$PYTHON" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("tensorflow") and u.find_spec("tf_keras")))' || {
  echo "interop: skipped: $PYTHON lacks the packages tensorflow and tf-keras; set PYTHON" >&2
  exit 0
}
"$B/tidemill" spec/interop/curves.lua "$dir"
"$PYTHON" spec/interop/curves.py "$dir" 2>"$dir/log" || {
  cat "$dir/log" >&2
  exit 1
}
[ $# -eq 0 ] || "$B/tidemill" spec/interop/curves.lua "$dir" "$1"
