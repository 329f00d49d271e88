#!/bin/bash
# The files of an installation.
set -euo pipefail
source tools/install/installation.sh
needs cmake make pkg-config

[[ -s $prefix/lib/libreprise.a && -s $prefix/include/reprise/engine/engine.h ]] ||
  fail "the installation lacks its library or its headers"
for file in lib/cmake/Reprise/RepriseConfig.cmake lib/cmake/Reprise/RepriseConfigVersion.cmake lib/pkgconfig/reprise.pc; do
  if grep -q '@[A-Z_]*@' "$prefix/$file"; then
    fail "$file has places that were not filled in"
  fi
done

unmarked=$(grep -rL '^// Unstable: any version may change this header' "$prefix"/include/reprise/{hf,models} || true)
[[ -z $unmarked ]] || fail "headers that are not marked as unstable: $unmarked"

read_flags
[[ " ${cflags[*]} " == *" -isystem $prefix/include "* ]] ||
  fail "pkg-config does not name the headers by -isystem: ${cflags[*]}"

# A version that is not the installed one.
cat >"$TEST_TMPDIR/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(newer LANGUAGES CXX)
find_package(Reprise 0.2 REQUIRED)
END
if cmake -S "$TEST_TMPDIR" -B "$TEST_TMPDIR/newer" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1; then
  fail "find_package(Reprise 0.2) accepted another version"
fi
