#!/bin/bash
# The loop by hand gives the text that the engine gives (examples/decode/decode_test.cc), alone and in a
# batch.
set -euo pipefail
expected="YEAR, n.  A period of three hundred and sixty-five disappointments."
program=examples/simple/simple
alone=$("$program" "YEAR, n.")
[[ $alone == "$expected" ]] || {
  echo "alone: expected $expected, got $alone" >&2
  exit 1
}
batch=$("$program" "hack" "YEAR, n." "a b c d e f g")
[[ $batch == *$'\n'"$expected"$'\n'* ]] || {
  echo "in a batch: expected a line $expected, got $batch" >&2
  exit 1
}
