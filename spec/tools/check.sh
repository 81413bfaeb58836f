#!/bin/bash
# One check, as one TAP line.  Usage: check.sh layers|format|luacheck|functions|sizes|calls|headers|syntax|...
set -u
cd "$(dirname "$0")/../.." || exit 1
B=${TM_BUILD:-build}

tap() { # tap NAME COMMAND...
  local name=$1 out
  shift
  echo 1..1
  if out=$("$@" 2>&1); then
    echo "ok 1 - $name"
    [ -z "$out" ] || sed 's/^/# /' <<<"$out"
  else
    echo "not ok 1 - $name"
    head -n 100 <<<"$out"
    exit 1
  fi
}

skip() {
  echo 1..1
  echo "ok 1 - $1 # SKIP $2 is not installed"
  exit 0
}

each_header() {
  local h bad=0
  for h in core/*/*.h; do
    # The flags hold no spaces of their own.
    $(cat "$B/flags") -fsyntax-only -x c "$h" || bad=1
  done
  return $bad
}

c_files() { ls core/*/*.[ch] core/*/*.inc spec/core/*.[ch] spec/fuzz/*.c 2>/dev/null; }

case $1 in
  layers)
    tap "each layer includes only those below it" \
      lua5.4 spec/tools/layers.lua $(ls core/*/*.[ch] | grep -v '^core/include/')
    ;;
  format)
    command -v clang-format >/dev/null || skip "C sources have the layout of .clang-format" clang-format
    tap "C sources have the layout of .clang-format" \
      clang-format --dry-run -Werror $(c_files | grep -v '\.inc$')
    ;;
  luacheck)
    command -v luacheck >/dev/null || skip "luacheck has nothing to say" luacheck
    tap "luacheck has nothing to say" luacheck -q --no-color \
      $(ls -d lua spec/*.lua spec/tools/*.lua examples/*.lua bench/*.lua 2>/dev/null)
    ;;
  functions)
    command -v pmccabe >/dev/null || skip "C functions are short and simple" pmccabe
    tap "C functions are short and simple" lua5.4 spec/tools/functions.lua
    ;;
  sizes)
    tap "no C file is longer than 800 lines" lua5.4 spec/tools/size.lua
    ;;
  calls)
    tap "the core calls nothing behind its own back" lua5.4 spec/tools/calls.lua
    ;;
  headers)
    [ -e "$B/flags" ] || skip "each header stands alone" "$B"
    tap "each header stands alone" each_header
    ;;
  syntax)
    command -v luajit >/dev/null || skip "shipped Lua and specs compile under LuaJIT" luajit
    tap "shipped Lua and specs compile under LuaJIT" luajit spec/tools/syntax.lua \
      $(find lua -name '*.lua' 2>/dev/null) spec/*_spec.lua
    ;;
  luajit)
    tap "LuaJIT loads tidemill" luajit -e 'require "tidemill"'
    ;;
  fuzz)
    mkdir -p "$B/corpus/$2"
    seeds=spec/fuzz/corpus/${2#fuzz_}
    [ -d "$seeds" ] || seeds=
    tap "$2 finds nothing in ${FUZZ_SECONDS:-60} s" "$B/fuzz/$2" \
      -max_total_time="${FUZZ_SECONDS:-60}" -max_len=65536 -rss_limit_mb=1024 -timeout=10 \
      -print_final_stats=0 -verbosity=0 -artifact_prefix="$B/corpus/$2-" "$B/corpus/$2" $seeds
    ;;
esac
