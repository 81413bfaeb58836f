#!/bin/bash
# Run tests and add up what they say.
#
# Usage: B=build spec/tools/run.sh [c] [lua] [check] [valgrind] [fuzz] [luajit]
#        ONLY=pattern   only C tests, specs and fuzzers whose path matches (a bash regex)
#        JOBS=n         how many at once (default: the cores)
#
# Each job is one process with a time limit; its output goes to a file of its own and
# is read as TAP.  A job that ends badly without a "not ok" line, or stops before its
# plan is through, counts as one failure.  All TAP lines are printed, failures with
# what was said about them; the last line is "N passed, N failed".
set -u
cd "$(dirname "$0")/../.." || exit 1

B=${B:-build}
SAN=${SAN:-none}
LUA=${LUA:-lua5.4}
ONLY=${ONLY:-.}
JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}
LIMIT=${LIMIT:-240} # a spec of half a minute may take four on a busy machine
OUT=$B/test-out

rm -rf "$OUT"
mkdir -p "$OUT"

export TM_BUILD=$B
export LUA_PATH_5_4="$PWD/lua/?.lua;$PWD/lua/?/init.lua;;"
case $B in /*) ABS=$B ;; *) ABS=$PWD/$B ;; esac
export LUA_CPATH_5_4="$ABS/lib/?.so;;"
export LUA_PATH="$PWD/lua/?.lua;$PWD/lua/?/init.lua;;" LUA_CPATH="$ABS/lib/?.so;;"
export CMOCKA_MESSAGE_OUTPUT=TAP
export OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}
export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=0:detect_stack_use_after_return=1}
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=0:exitcode=66:second_deadlock_stack=1}

# Under a sanitizer the program itself runs the specs: a stock lua5.4 would need the
# runtime before all else, and so would each program that a spec starts.
NO_ASLR=
[ "$SAN" != none ] && LUA=$B/tidemill
# gcc 12's runtime cannot map its shadow under much address randomness.
[ "$SAN" = thread ] && setarch -R true 2>/dev/null && NO_ASLR="setarch -R"
[ "$SAN" != none ] && LIMIT=$((LIMIT * 5))

# name TAB command, one a line
list() {
  local f name turns
  case $1 in
    c)
      for f in spec/core/test_*.c; do
        name=${f##*/} name=${name%.c}
        [ -x "$B/spec/$name" ] && printf '%s\t%s\n' "$name" "$NO_ASLR $B/spec/$name"
      done
      for f in spec/fuzz/fuzz_*.c; do
        name=${f##*/} name=${name%.c}
        turns=${REPLAY_TURNS:-20000}
        [ "$name" = fuzz_task ] && turns=$((turns / 20)) # each is a start of a task
        [ -x "$B/replay/$name" ] && printf '%s\t%s\n' "$name" \
          "$NO_ASLR $B/replay/$name $turns $(ls spec/fuzz/corpus/${name#fuzz_}/* 2>/dev/null | tr '\n' ' ')"
      done
      ;;
    lua)
      # A spec needs the module; without it there is nothing to test yet.
      [ -e "$B/lib/tidemill/core.so" ] || return
      for f in spec/*_spec.lua; do
        [ -e "$f" ] && printf '%s\t%s\n' "${f##*/}" \
          "$NO_ASLR $LUA /usr/bin/busted --helper=spec/tools/helper.lua -o TAP $f"
      done
      ;;
    luajit)
      [ -e "$B/lib/tidemill/core.so" ] || return
      printf 'luajit loads tidemill\tspec/tools/check.sh luajit\n'
      LUA=luajit list lua
      ;;
    valgrind)
      for f in spec/core/test_*.c; do
        name=${f##*/} name=${name%.c}
        case $name in test_base_* | test_tensor_* | test_graph_* | test_net_* | test_ps_*) ;; *) continue ;; esac
        [ -x "$B/spec/$name" ] && printf '%s\t%s\n' "$name" \
          "valgrind -q --error-exitcode=9 --leak-check=full --errors-for-leak-kinds=definite $B/spec/$name"
      done
      ;;
    fuzz)
      for f in spec/fuzz/fuzz_*.c; do
        name=${f##*/} name=${name%.c}
        [ -x "$B/fuzz/$name" ] && printf '%s\t%s\n' "$name" "spec/tools/check.sh fuzz $name"
      done
      ;;
    check)
      for name in layers format luacheck functions sizes calls headers syntax; do
        printf '%s\t%s\n' "check $name" "spec/tools/check.sh $name"
      done
      ;;
  esac
}

# One job: run it, keep its output and status.
job() {
  local name=$1 cmd=$2 file
  file=$OUT/${name//[^A-Za-z0-9_.]/_}
  timeout -k 5 "$LIMIT" $cmd >"$file.out" 2>"$file.err" </dev/null
  echo $? >"$file.rc"
}
export -f job
export OUT LIMIT

for part in "${@:-c}"; do list "$part"; done |
  { if [ "$ONLY" = . ]; then cat; else grep -E "$ONLY"; fi; } >"$OUT/jobs"
case " $* " in *" valgrind "*) LIMIT=$((LIMIT * 5)) ;; *" fuzz "*) LIMIT=$((LIMIT + ${FUZZ_SECONDS:-60})) ;; esac

# xargs would stop at a status of 255, so job never fails.
tr '\t\n' '\0\0' <"$OUT/jobs" | xargs -0 -r -n 2 -P "$JOBS" bash -c 'job "$0" "$1"; exit 0'

while IFS=$'\t' read -r name _; do
  file=$OUT/${name//[^A-Za-z0-9_.]/_}
  echo "@job $(cat "$file.rc" 2>/dev/null || echo none) $name"
  cat "$file.out" 2>/dev/null
  # Standard error is shown only for a job that failed.
  echo "@err"
  head -n 120 "$file.err" 2>/dev/null
  echo
done <"$OUT/jobs" | awk '
  function close_job(  why) {
    if (job == "") return
    why = ""
    if (rc == 124 || rc == 137) why = "ran out of time"
    else if (rc != 0 && bad == 0) why = "ended with status " rc
    else if (plan != "" && seen < plan) why = "stopped after " seen " of " plan
    if (why != "") { print "not ok " ++n " - " job ": " why; failed++; bad++
                     list[failed] = job ": " why }
    if (bad > 0) for (i = 1; i <= lines; i++) print "# " text[i]
    job = ""
  }
  /^@job / { close_job(); rc = $2; job = $0; sub(/^@job [^ ]+ /, "", job)
             seen = bad = lines = 0; plan = ""; err = 0; next }
  /^@err$/ { err = 1; next }
  !err && /^1\.\.[0-9]+/ { plan = substr($1, 4) + 0; next }
  !err && /^(not )?ok / {
    line = $0; skip = line ~ /# SKIP/
    good = skip || line !~ /^not /  # cmocka says "not ok" of what it skips
    sub(/^(not )?ok [0-9]* *(- )?/, "", line)
    seen++
    print (good ? "ok " : "not ok ") ++n " - " job ": " line
    if (!good) { failed++; bad++; list[failed] = job ": " line } else if (!skip) passed++
    next
  }
  { if ($0 != "" && lines < 200) text[++lines] = $0 }
  END { close_job()
        for (i = 1; i <= failed; i++) print "# failed: " list[i]
        printf "%d passed, %d failed\n", passed, failed; exit failed > 0 }
'
