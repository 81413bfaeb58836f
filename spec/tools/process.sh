#!/bin/sh
# Run a command in a session of its own and say how it went: its pid on standard output at
# once; its output in DIR/out and DIR/err, its exit status in DIR/status.
# Usage: process.sh DIR command [args]       ends when the command ends
dir=$1
shift
setsid "$@" >"$dir/out" 2>"$dir/err" </dev/null &
pid=$!
echo "$pid"
exec 2>/dev/null
wait "$pid" 2>/dev/null
echo $? >"$dir/status.part"
mv "$dir/status.part" "$dir/status"
