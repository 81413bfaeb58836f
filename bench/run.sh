#!/bin/sh
# Run the benchmarks one after the other; see README.md.  usage: run.sh [NAME ...]
set -eu
cd "$(dirname "$0")/.."
bin=build/tidemill
python=${PYTHON:-python3}
[ $# -gt 0 ] || set -- schedule tutorial ctr mlp start recovery

peer() { # peer FOLDER SCRIPT ARGS
  [ -n "${PEERS:-}" ] || return 0
  echo "# peer $*"
  folder=$1
  shift
  (cd "$PEERS/$folder" && "$python" "$@" 2>/dev/null | grep RESULT)
}

for name; do
  echo "# $name"
  case $name in
    schedule)
      $bin bench/schedule.lua 1 200000
      $bin bench/schedule.lua 3 200000
      $bin launch --workers 3 --ps 1 bench/schedule.lua 3 200000
      peer tensorflow schedule.py inproc 3 2000
      ;;
    tutorial)
      $bin bench/tutorial.lua 4000
      $bin launch --workers 3 --ps 2 bench/tutorial.lua 4000
      peer tensorflow tutorial.py inproc 200 1
      ;;
    ctr)
      $bin bench/ctr.lua 3 2 100000 256 500
      $bin launch --workers 3 --ps 2 bench/ctr.lua 3 2 100000 256 500
      peer tensorflow ctr.py inproc 3 2 100000 256 100
      ;;
    mlp)
      $bin bench/mlp.lua local 0 0 500
      $bin bench/mlp.lua cluster 3 2 500
      $bin launch --workers 3 --ps 2 bench/mlp.lua cluster 3 2 500
      peer pytorch mlp.py 500
      peer tensorflow mlp.py local 0 0 500
      ;;
    conv)
      for n in 1 2; do
        echo "# $n threads"
        OPENBLAS_NUM_THREADS=$n $bin bench/conv.lua
        [ -z "${PEERS:-}" ] || "$python" bench/conv_peer.py $n
      done
      ;;
    start) sh bench/start.sh ;;
    recovery) $bin launch --workers 3 --ps 2 bench/recovery.lua ;;
    *)
      echo "run.sh: there is no benchmark $name" >&2
      exit 2
      ;;
  esac
done
