#!/bin/bash
# install_programs_test.sh GOLDEN... MODEL...: builds examples/embed against an installation with CMake, runs the programs,
# and builds two programs with pkg-config. GOLDEN and MODEL: as in embed_test.sh.
set -euo pipefail
source tools/install/installation.sh

! has_cuda || not_run "programs are built against the CPU build's installation only"
needs cmake make pkg-config g++
read_flags

# Sources are copied: the folder of a test has links, from which CMake would climb to the checkout.
cp -rL examples/embed "$TEST_TMPDIR/embed"
cmake -S "$TEST_TMPDIR/embed/cmake" -B "$TEST_TMPDIR/build" -DCMAKE_PREFIX_PATH="$prefix" \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG=-O0 >"$TEST_TMPDIR/configure.log" 2>&1 ||
  { cat "$TEST_TMPDIR/configure.log" && exit 1; }
cmake --build "$TEST_TMPDIR/build" --parallel 2
FOLDER=$TEST_TMPDIR/build examples/embed/embed_test.sh "$@"

g++ -Iexamples/embed "${cflags[@]}" examples/embed/include_paths_test.cc "${libs[@]}" -o "$TEST_TMPDIR/include_paths_test"
"$TEST_TMPDIR/include_paths_test"

g++ "${cflags[@]}" -O0 examples/embed/stream_text.cc "${libs[@]}" -o "$TEST_TMPDIR/stream_text"
text=$("$TEST_TMPDIR/stream_text" "$(dirname "${!#}")" "YEAR, n.")
[[ $text == "  A period of three hundred and sixty-five disappointments." ]] || fail "stream_text wrote '$text'"
