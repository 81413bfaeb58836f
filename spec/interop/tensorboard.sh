#!/bin/bash
# TensorBoard reads what tidemill logs.
# Usage: B=build spec/interop/tensorboard.sh   (`make interop`); PYTHON names an
# interpreter that has the packages tensorboard and pillow.
set -eu
cd "$(dirname "$0")/../.."
B=${B:-build}
PYTHON=${PYTHON:-python3}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$PYTHON" -c 'import tensorboard, PIL' || {
  echo "interop: $PYTHON lacks the packages tensorboard and pillow; set PYTHON" >&2
  exit 1
}
"$B/tidemill" spec/interop/tensorboard.lua "$dir"
"$PYTHON" spec/interop/tensorboard_check.py "$dir"
