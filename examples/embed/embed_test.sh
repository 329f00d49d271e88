#!/bin/bash
# The program of an outsider builds (it is this test's data), runs, and prints what it should.
set -euo pipefail
output=$(./embed)
[[ $output == "6 7 8 9 10 11 12 13 " ]] || {
  echo "unexpected output: $output" >&2
  exit 1
}
