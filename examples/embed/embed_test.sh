#!/bin/bash
# The program of an outsider builds (it is this test's data), runs, and prints what it should.
set -euo pipefail
output=$(./embed)
[[ $output == "3 of 8 blocks are used" ]] || {
  echo "unexpected output: $output" >&2
  exit 1
}
