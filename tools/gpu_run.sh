#!/usr/bin/env bash
# Runs what tools/gpu_bundle.sh collected, on a machine with a GPU: tests, sanitizer, benchmarks; a short
# table last. See docs/gpu-testing.md.
#
#   .gpu/run.sh [tests] [ops] [sanitizer] [bench] [attention] [decode]     default: all
#   LIBTORCH=DIR      LibTorch; default: the torch of python3
#   OUT=DIR           where logs go; default: a temporary folder
#   GTEST_FILTER=...  as gtest knows it, for tests
#   SANITIZER_FILTER=... the same for sanitizer; default: *Small*-*Smallest*
#   SANITIZER_TOOLS=...  the tools of compute-sanitizer; default: memcheck racecheck
#   BENCH_FLAGS=...   of decode_step
#   ATTENTION_FLAGS=... of attention_bench
set -u
bundle=$(cd "$(dirname "$0")" && pwd)
cd "$bundle/.."
source "$bundle/gpu_pack.sh"
unpack_programs "$bundle"
out=${OUT:-$(mktemp -d)}
export REPRISE_TEST_DATA=$bundle/..

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(tests ops sanitizer bench attention decode)
summary=()
failed=0
note() { summary+=("$(printf '%-10s %-8s %s' "$1" "$2" "$3")"); [ "$2" != FAILED ] || failed=1; }

# The test programs of the bundle: gpu_all, or single tests named to gpu_bundle.sh.
test_programs() { find "$here" -maxdepth 1 -type f \( -name gpu_all -o -name '*_test' \) | sort; }

run_tests() {
  local program
  for program in $(test_programs); do
    local start=$SECONDS name=$(basename "$program")
    "$program" --gtest_brief=1 >"$out/$name.log" 2>&1
    local rc=$?
    grep -E '^\[  (FAILED|PASSED)|Failure|tests ran' "$out/$name.log" | tail -40
    local line
    line=$(grep -E '^\[==========\].*ran' "$out/$name.log" | tail -1)
    [ $rc -eq 0 ] && note tests ok "$name: $line $((SECONDS - start)) s" || note tests FAILED "$name: rc $rc; $line"
  done
}

run_sanitizer() {
  local tool
  if ! command -v compute-sanitizer >/dev/null; then
    note sanitizer skipped "compute-sanitizer is not installed"
    return
  fi
  local program
  for program in $(test_programs); do
    for tool in ${SANITIZER_TOOLS:-memcheck racecheck}; do
      local start=$SECONDS log=$out/$tool-$(basename "$program").log
      # Barriers of our own making are followed if there may be some.
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $tool --num-cuda-barriers 64 --error-exitcode 9 \
        "$program" --gtest_brief=1 --gtest_filter="${SANITIZER_FILTER:-*Small*-*Smallest*}" >"$log" 2>&1
      local rc=$? passed num_failed counts
      tail -4 "$log"
      passed=$(sed -nE 's/^\[  PASSED  \] ([0-9]+) test.*/\1/p' "$log")
      num_failed=$(sed -nE 's/^\[  FAILED  \] ([0-9]+) test.*/\1/p' "$log")
      counts="$(basename "$program"): ${passed:-0} passed, ${num_failed:-0} failed, $((SECONDS - start)) s"
      if [ $rc -ne 0 ]; then
        note "$tool" FAILED "$counts, rc $rc, see $log"
      elif [ "${passed:-0}" -eq 0 ]; then
        note "$tool" FAILED "$counts, no case has run, see $log"
      else
        note "$tool" ok "$counts"
      fi
    done
  done
}

run_ops() {
  [ -e "$here/libreprise_ops.so" ] || { note ops skipped "no libreprise_ops.so in the bundle"; return; }
  local test
  for test in operators_test operator_oracles_test operator_cache_oracles_test; do
    local log=$out/$test.log
    python3 -W ignore attention/torch_ops/$test.py "$here/libreprise_ops.so" >"$log" 2>&1
    local rc=$?
    sed -n '/^oracle /,$p' "$log"
    [ $rc -eq 0 ] && note $test ok "$(grep -E '^Ran' "$log")" || { tail -40 "$log"; note $test FAILED "rc $rc"; }
  done
}

# benchmark PROGRAM FLAGS...: runs it and shows what it printed.
benchmark() {
  local program=$1
  shift
  [ -x "$here/$program" ] || { note "$program" skipped "not in the bundle"; return; }
  "$here/$program" "$@" >"$out/$program.txt" 2>"$out/$program.log"
  local rc=$?
  cat "$out/$program.txt"
  [ $rc -eq 0 ] && note "$program" ok "$out/$program.txt" || { tail -5 "$out/$program.log"; note "$program" FAILED "rc $rc"; }
}

run_bench() { benchmark decode_step ${BENCH_FLAGS:-}; }

run_attention() { benchmark attention_bench ${ATTENTION_FLAGS:-}; }

run_decode() {
  [ -x "$here/decode" ] || { note decode skipped "no decode in the bundle"; return; }
  "$here/decode" --model examples/models/jargon-llama --device cuda --dtype bfloat16 >"$out/decode.txt" 2>&1
  local rc=$?
  cat "$out/decode.txt"
  [ $rc -eq 0 ] && note decode ok "jargon-llama in bf16" || note decode FAILED "rc $rc"
}

for part in "${parts[@]}"; do "run_$part"; done
echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
printf '%s\n' "${summary[@]}"
exit $failed
