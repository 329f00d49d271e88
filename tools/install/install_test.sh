#!/bin/bash
# install_test.sh GOLDEN...: installs the toolkit into a folder, builds examples/embed against it with
# CMake, runs what comes out, and builds one of the programs with pkg-config.
set -euo pipefail

prefix=$TEST_TMPDIR/prefix
tools/install/install --prefix "$prefix"
[[ -s $prefix/lib/libreprise.a && -s $prefix/include/reprise/engine/engine.h ]] ||
  { echo "the installation lacks its library or its headers" >&2 && exit 1; }
for file in lib/cmake/Reprise/RepriseConfig.cmake lib/cmake/Reprise/RepriseConfigVersion.cmake lib/pkgconfig/reprise.pc; do
  if grep -q '@[A-Z_]*@' "$prefix/$file"; then
    echo "$file has places that were not filled in" >&2 && exit 1
  fi
done

if grep -q REPRISE_WITH_CUDA "$prefix/lib/cmake/Reprise/RepriseConfig.cmake"; then
  echo "skipped: programs are built against the CPU build's installation only"
  exit 0
fi

# Sources are copied: the folder of a test has links, from which CMake would climb to the checkout.
cp -rL examples/embed "$TEST_TMPDIR/embed"
cmake -S "$TEST_TMPDIR/embed/cmake" -B "$TEST_TMPDIR/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 >"$TEST_TMPDIR/configure.log" 2>&1 ||
  { cat "$TEST_TMPDIR/configure.log" && exit 1; }
cmake --build "$TEST_TMPDIR/build" --parallel 2
FOLDER=$TEST_TMPDIR/build examples/embed/embed_test.sh "$@"

# A version that is not the installed one.
cat >"$TEST_TMPDIR/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(newer LANGUAGES CXX)
find_package(Reprise 0.2 REQUIRED)
END
if cmake -S "$TEST_TMPDIR" -B "$TEST_TMPDIR/newer" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null 2>&1; then
  echo "find_package(Reprise 0.2) accepted another version" >&2 && exit 1
fi

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -ra cflags < <(pkg-config --cflags reprise)
read -ra libs < <(pkg-config --libs reprise)
cat >"$TEST_TMPDIR/blocks.cc" <<'END'
#include "cache/blocks/block_manager.h"

int main() {
  auto blocks = reprise::BlockManager::Create({.num_blocks = 4, .num_slots = 1, .max_blocks = 3});
  return blocks.ok() && blocks->Add(reprise::SlotId(0), 40).ok() &&
                 blocks->blocks(reprise::SlotId(0)).size() == 3
             ? 0
             : 1;
}
END
g++ "${cflags[@]}" "$TEST_TMPDIR/blocks.cc" "${libs[@]}" -o "$TEST_TMPDIR/blocks"
"$TEST_TMPDIR/blocks"
