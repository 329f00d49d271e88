#!/bin/bash
# Which compiler the CPU build takes, with compilers that only know their version.
set -uo pipefail
for part in testing report device compiler; do
  source "tools/setup/$part.sh"
done
unset CC REPRISE_APT

# choose_compiler() calls it, and this PATH has no other commands of the machine.
ln -s "$(command -v grep)" "$work/bin/grep"

# stand_in_clang NAME VERSION
stand_in_clang() {
  printf '#!%s\necho %s\n' "$BASH" "$2" | stand_in "$1"
}

# chosen DEVICE OWN ARGUMENTS...
chosen() {
  (PATH=$work/bin && choose_compiler "$@" && echo "$compiler")
}

expect_equal "$(chosen cpu yes test //...)" clang-16 "no clang: a package is named"
expect_equal "$(REPRISE_APT=never chosen cpu yes test //...)" "" "no clang, and none may be installed"
stand_in_clang clang 14.0.6
stand_in_clang clang-14 14.0.6
stand_in_clang clang-18 18.1.3
expect_equal "$(chosen cpu yes test //...)" clang-16 "one that is too old, and one that is too new"
expect_equal "$(REPRISE_APT=never chosen cpu yes test //...)" "" "the same, when none may be installed"
stand_in_clang clang-17 17.0.6
expect_equal "$(REPRISE_APT=never chosen cpu yes test //...)" clang-17 "one that serves, beside others"
stand_in_clang clang 16.0.6
expect_equal "$(chosen cpu yes test //...)" clang "the system's own, if it serves"
printf '#!%s\nexit 1\n' "$BASH" | stand_in clang
expect_equal "$(chosen cpu yes test //...)" clang-17 "a clang that does not run"

expect_equal "$(chosen cuda yes test //...)" "" "the CUDA build"
expect_equal "$(CC=gcc chosen cpu yes test //...)" "" "the user's compiler"
expect_equal "$(chosen cpu no test //...)" "" "an embedder's workspace"
expect_equal "$(chosen cpu no test --config=fuzz //...)" clang-17 "fuzz tests of an embedder's workspace"
for name in gcc asan ubsan asan_ubsan tsan; do
  expect_equal "$(chosen cpu yes test --config=$name //...)" "" "--config=$name"
  expect_equal "$(chosen cpu yes test --config $name //...)" "" "--config $name, in two words"
done
for name in cpu fuzz all_cases; do
  expect_equal "$(chosen cpu yes test --config=$name //...)" clang-17 "--config=$name"
done
expect_equal "$(chosen cpu yes run //x -- --config=gcc)" clang-17 "what follows -- is the program's"
expect_equal "$(chosen cpu yes)" clang-17 "no arguments"

finish
