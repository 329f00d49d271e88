#!/bin/bash
# filter.py over a small header: which comments become documentation, and how they are written. And what
# reference.sh refuses.
set -uo pipefail
source tools/setup/testing.sh

mkdir -p "$work/room"
cat >"$work/room/block_list.h" <<'END_HEADER'
// A list of `blocks` <of any size>.
//
//   BlockList list;   // an example
//
// Two rules:
//   1. the first
//   2. the second
//
//   free   none

#include <string>

namespace reprise {

struct Other {
  int value = 0;  // its value, which
                  // goes on
};

class BlockList {
 public:
  // ---- State.

  // Takes one. 100 % of them.
  int Take() {
    int x = 0;  // within a function
    // and on
    return x;
  }
  std::string name = "//";  // a name
};

}  // namespace reprise
END_HEADER
cat >"$work/expected" <<'END_HEADER'
/// @file
/// A list of <tt>blocks</tt> \<of any size\>.
///
/// <pre>
/// BlockList list;   // an example
/// </pre>
///
/// Two rules:
/// <br>1. the first
/// <br>2. the second
///
/// <pre>
/// free   none
/// </pre>

#include <string>

namespace reprise {

struct Other {
  int value = 0;  ///< its value, which
                  ///< goes on
};

/// A list of <tt>blocks</tt> \<of any size\>.
///
/// <pre>
/// BlockList list;   // an example
/// </pre>
///
/// Two rules:
/// <br>1. the first
/// <br>2. the second
///
/// <pre>
/// free   none
/// </pre>
class BlockList {
 public:
  // ---- State.

  /// Takes one. 100 \% of them.
  int Take() {
    int x = 0;  // within a function
    // and on
    return x;
  }
  std::string name = "//";  ///< a name
};

}  // namespace reprise
END_HEADER
filter=$PWD/docs/doxygen/filter.py
(cd "$work" && "$filter" --out out room/block_list.h) || fail "filter.py"
run diff "$work/expected" "$work/out/room/block_list.h"
expect_equal "$output" "" "a header as Doxygen reads it"

# What the script refuses, before it installs or writes anything.
run docs/doxygen/reference.sh --into "$work"
expect_status 2 "an unknown flag"
expect_output "expected --out DIR, got '--into'" "an unknown flag"
run docs/doxygen/reference.sh --out
expect_status 2 "--out without a folder"
BUILD_WORKSPACE_DIRECTORY=$work run docs/doxygen/reference.sh --out "$work/docs/html"
expect_status 2 "a folder in the tree"
expect_output "must be outside of" "a folder in the tree"
[[ ! -e $work/docs ]] || fail "a refused call has made a folder"

# Doxygen's own part, by one that stands in for it: the headers it is given, and its failure.
stand_in doxygen <<'END_DOXYGEN'
cat >"$DOXYGEN_LOG"
exit "${DOXYGEN_STATUS:-0}"
END_DOXYGEN
mkdir -p "$work/project/tools/ci" "$work/project/tools/install" "$work/project/tools/setup" "$work/project/docs" "$work/project/room"
cp -r docs/doxygen "$work/project/docs/"
cp tools/ci/docstrings.py "$work/project/tools/ci/"
cp tools/setup/*.sh "$work/project/tools/setup/"
cp "$work/room/block_list.h" "$work/project/room/"
printf 'PUBLIC_TARGETS = [\n    "//room:block_list",\n]\n' >"$work/project/tools/install/public_targets.bzl"
echo 'reprise_cc_library(name = "block_list")' >"$work/project/room/BUILD"
echo 'VERSION = "1.2.3"' >"$work/project/tools/version.bzl"
export DOXYGEN_LOG=$work/configuration
BUILD_WORKSPACE_DIRECTORY=$work/project run docs/doxygen/reference.sh --out "$work/html"
expect_status 0 "a reference"
expect_output "1 headers: $work/html/html/index.html" "a reference"
grep -q '^PROJECT_NUMBER = 1.2.3$' "$work/configuration" || fail "the version is not in the configuration"
export DOXYGEN_STATUS=1
BUILD_WORKSPACE_DIRECTORY=$work/project run docs/doxygen/reference.sh --out "$work/html"
expect_status 1 "a doxygen that fails"
expect_output "doxygen failed; see $work/html/doxygen.log" "a doxygen that fails"

exit $((failures > 0))
