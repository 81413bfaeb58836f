#!/bin/sh
# Debian packages that a build and its tests need.
# Usage: deps.sh list      say what is missing; status 1 when something is
#        deps.sh install   as root install what is missing; else print how and stop
# TM_DEPS=run (the default), test (also for make test), all (also for make test-all)
set -eu

PACKAGES="build-essential pkg-config lua5.4 liblua5.4-dev libuv1-dev libmsgpack-dev
libopenblas-dev libsleef-dev zlib1g-dev libjansson-dev
libprotobuf-c-dev protobuf-c-compiler libcurl4-openssl-dev"
TEST="libcmocka-dev lua-busted lua-check clang-format pmccabe"
TEST_ALL="clang libclang-rt-14-dev valgrind luajit libluajit-5.1-dev"
case ${TM_DEPS:-run} in
  test) PACKAGES="$PACKAGES $TEST" ;;
  all) PACKAGES="$PACKAGES $TEST $TEST_ALL" ;;
esac

command -v dpkg-query >/dev/null 2>&1 || {
  echo "This is no Debian: install the counterparts of:" $PACKAGES
  exit 0
}

installed() {
  dpkg-query -W -f='${db:Status-Status} ${Provides}\n' "$1" 2>/dev/null | grep -q '^installed'
}

missing=
for p in $PACKAGES; do
  installed "$p" && continue
  # Any flavour of OpenBLAS will do.
  [ "$p" = libopenblas-dev ] && installed libopenblas-pthread-dev && continue
  # So will any flavour of libcurl.
  [ "$p" = libcurl4-openssl-dev ] && installed libcurl4-gnutls-dev && continue
  missing="$missing $p"
done
if [ -z "$missing" ]; then
  [ "$1" = list ] && echo "Nothing is missing."
  exit 0
fi

if [ "$1" = install ] && [ "$(id -u)" = 0 ]; then
  echo "Installing from Debian:$missing"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends $missing >/dev/null
  exit 0
fi
echo "Missing. As root:"
echo "apt-get install -y --no-install-recommends$missing"
exit 1
