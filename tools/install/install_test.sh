#!/bin/bash
# install_test.sh GOLDEN... MODEL...: installs the toolkit into a folder. Builds examples/embed against the installation
# with CMake, runs the programs, and builds two programs with pkg-config. With REPRISE_CHECK_HEADERS=yes it also compiles
# each installed header by itself. GOLDEN and MODEL: as in embed_test.sh.
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

unmarked=$(grep -rL '^// Unstable: any version may change this header' "$prefix"/include/reprise/{hf,models} || true)
[[ -z $unmarked ]] || { echo "headers that are not marked as unstable: $unmarked" >&2 && exit 1; }

if grep -q REPRISE_WITH_CUDA "$prefix/lib/cmake/Reprise/RepriseConfig.cmake"; then
  echo "skipped: programs are built against the CPU build's installation only"
  exit 0
fi

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -ra cflags < <(pkg-config --cflags reprise)
read -ra libs < <(pkg-config --libs reprise)
[[ " ${cflags[*]} " == *" -isystem $prefix/include "* ]] ||
  { echo "pkg-config does not name the headers by -isystem: ${cflags[*]}" >&2 && exit 1; }
# 294 compilations: five minutes on two cores.
if [[ ${REPRISE_CHECK_HEADERS:-} == yes ]]; then
  tools/install/check_headers.py "$prefix/include" g++ "${cflags[@]}"
else
  echo "skipped: headers are compiled alone with --test_env=REPRISE_CHECK_HEADERS=yes only"
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

g++ -Iexamples/embed "${cflags[@]}" examples/embed/include_paths_test.cc "${libs[@]}" -o "$TEST_TMPDIR/include_paths_test"
"$TEST_TMPDIR/include_paths_test"

g++ "${cflags[@]}" -O0 examples/embed/stream_text.cc "${libs[@]}" -o "$TEST_TMPDIR/stream_text"
text=$("$TEST_TMPDIR/stream_text" "$(dirname "${!#}")" "YEAR, n.")
[[ $text == "  A period of three hundred and sixty-five disappointments." ]] ||
  { echo "stream_text wrote '$text'" >&2 && exit 1; }
