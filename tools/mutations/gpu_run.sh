#!/usr/bin/env bash
# Runs what tools/mutations/mutate.py --gpu --bundle DIR has packed, on a machine with a GPU: each test without its
# fault, which must pass, and with it, which must fail. Ends with 1 if a fault escapes.
#
#   DIR/run.sh
#   LIBTORCH=DIR      LibTorch; default: the torch of python3
#   OUT=DIR           where logs go; default: a temporary folder
#   LIMIT=SECONDS     for each run of a test (120)
set -u
bundle=$(cd "$(dirname "$0")" && pwd)
cd "$bundle/.." || exit 2
source "$bundle/gpu_pack.sh"
unpack_programs "$bundle"
out=${OUT:-$(mktemp -d)}
export REPRISE_TEST_DATA=$bundle/..
num_faults=0
num_found=0

# run_test PROGRAM CASES LOG: the test's status.
run_test() { timeout -k 10 "${LIMIT:-120}" "$here/$1" --gtest_brief=1 --gtest_filter="$2" >"$3" 2>&1; }

# Whether the cases pass on this machine without a fault, and are there at all.
passes() {
  [ -e "$out/$1.$2.ok" ] && return 0
  run_test "$1" "$3" "$out/$1.log" && grep -qE "^\[  PASSED  \] [1-9]" "$out/$1.log" &&
    touch "$out/$1.$2.ok"
}

while IFS=$'\t' read -r name plain cases; do
  num_faults=$((num_faults + 1))
  if ! passes "$plain" "$(printf '%s' "$cases" | cksum | cut -d ' ' -f 1)" "$cases"; then
    printf '%-26s the test does not pass without it: see %s\n' "$name" "$out/$plain.log"
    tail -5 "$out/$plain.log"
    continue
  fi
  start=$SECONDS
  run_test "$name" "$cases" "$out/$name.log"
  status=$?
  first=$(grep -oE '^\[  FAILED  \] [A-Za-z0-9_/]+\.[A-Za-z0-9_/]+' "$out/$name.log" | head -1)
  case $status in
    0) what=ESCAPED ;;
    126 | 127) what="cannot be run: $(tail -1 "$out/$name.log")" ;;
    124 | 137) what="found: out of time" ;;
    1) what="found by ${first##* }" ;;
    *) what="found: the test crashed, status $status" ;;
  esac
  case $what in found*) num_found=$((num_found + 1)) ;; esac
  printf '%-26s %4d s  %s\n' "$name" $((SECONDS - start)) "$what"
done <"$here/faults.tsv"
echo "$num_found of $num_faults faults were found"
[ "$num_found" -eq "$num_faults" ]
