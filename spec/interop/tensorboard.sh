#!/bin/bash
# TensorBoard reads what tidemill logs: event files of a script's own, and of fits with
# tm.callbacks.TensorBoard, one of them on a cluster.
# Usage: B=build spec/interop/tensorboard.sh   (`make interop`); PYTHON names an
# interpreter that has the packages tensorboard and pillow.
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
PYTHON=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1 TF_CPP_MIN_LOG_LEVEL=3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$PYTHON" -c 'import tensorboard, PIL' 2>/dev/null || {
  echo "interop: skipped: $PYTHON lacks the packages tensorboard and pillow; set PYTHON" >&2
  exit 0
}
"$B/tidemill" spec/interop/tensorboard.lua "$dir/logs"
"$B/tidemill" spec/interop/tensorboard_fit.lua "$dir/fit" > "$dir/numbers.json"
"$PYTHON" spec/interop/tensorboard_check.py "$dir/logs"
"$PYTHON" spec/interop/tensorboard_fit.py "$dir/fit" "$dir/numbers.json"
