#!/bin/sh
# Run make targets one after another and say in the end which failed.
# Usage: all.sh TARGET...
failed=
for t in "$@"; do
  echo "==== make $t"
  # What takes gigabytes is asked of the plain build only.
  if [ "$t" = test ]; then
    export TM_BIG=1 LIMIT=300
  else
    unset TM_BIG LIMIT
  fi
  ${MAKE:-make} --no-print-directory "$t" || failed="$failed $t"
done
if [ -n "$failed" ]; then
  echo "failed:$failed"
  exit 1
fi
echo "all of: $*"
