#!/bin/bash
# The checks that are too slow for every commit, and a table of them at the end: all cases of large matrices, the host
# tests compiled by g++, the same under the address and the undefined-behaviour sanitizer (one build for both) and
# under the thread sanitizer, every fuzz test for a minute, and the device tests under compute-sanitizer.
#
#   tools/check_all.sh [all_cases] [gcc] [asan_ubsan] [tsan] [fuzz] [gpu] [-- TARGET...]     default: all of them, over //...
#   asan, ubsan                  either of the two alone
#   REPRISE_FUZZ_SECONDS=N       for each fuzz test (60)
#   JOBS=N                       of Bazel; default: as many as it chooses
#   OUT=DIR                      where logs go; default: a temporary folder
#
# The part `gpu` needs a GPU and compute-sanitizer; without them it says so in its row. It is tools/gpu_run.sh's
# part `sanitizer`, which tools/gpu_bundle.sh carries to another machine: memcheck over the kernels as they are,
# racecheck over those of --config=racecheck. Ends with 1 if a check fails.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1
source tools/setup/device.sh

checks=()
while (($# > 0)) && [[ $1 != -- ]]; do
  case $1 in
    all_cases | gcc | asan_ubsan | asan | ubsan | tsan | fuzz | gpu) checks+=("$1") ;;
    *) echo "check_all: no check '$1': expected all_cases, gcc, asan_ubsan, asan, ubsan, tsan, fuzz or gpu" >&2 && exit 2 ;;
  esac
  shift
done
(($# == 0)) || shift
targets=("$@")
((${#checks[@]} > 0)) || checks=(all_cases gcc asan_ubsan tsan fuzz gpu)
((${#targets[@]} > 0)) || targets=(//...)

out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
bazel_options=(--keep_going --noshow_progress)
[[ -z ${JOBS:-} ]] || bazel_options+=("--jobs=$JOBS" "--local_test_jobs=$JOBS")
status=0
rows=()

# row CHECK TARGETS PASSED FAILED SECONDS [NOTE]
row() { rows+=("$(printf '%-11s %7s %7s %7s %6s s  %s' "$@")"); }

# run_bazel CHECK: the tests of a configuration.
run_bazel() {
  local check=$1 start=$SECONDS events=$out/$1.events.json result passed failed skipped num_targets note=
  ./bazelw test "--config=$check" "${bazel_options[@]}" --build_event_json_file="$events" -- "${targets[@]}" \
    </dev/null 2>&1 | tee "$out/$check.log"
  result=${PIPESTATUS[0]}
  read -r passed failed skipped < <(tools/ci/count_cases.sh "$events" 2>"$out/$check.failed")
  num_targets=$(grep -oE '^\{"id":\{"testResult":\{"label":"[^"]*"' "$events" | sort -u | wc -l)
  # 4: nothing to be tested among the targets.
  case $result in
    0) ;;
    4) note="no tests among the targets" ;;
    *) status=1 note="bazelw ended with status $result: $out/$check.log" ;;
  esac
  ((${skipped:-0} == 0)) || note="$skipped skipped${note:+; $note}"
  row "$check" "$num_targets" "${passed:-0}" "${failed:-0}" $((SECONDS - start)) "$note"
  cat "$out/$check.failed"
}

# run_sanitizer TOOL FOLDER FLAGS: a tool of compute-sanitizer over a bundle of its own.
run_sanitizer() {
  local tool=$1 folder=$2 flags=$3 start=$SECONDS log=$out/gpu-$1.log result line passed failed
  if ! REPRISE_GPU_DIR=$folder REPRISE_BAZEL_FLAGS=$flags tools/gpu_bundle.sh //tests:gpu_all >"$log" 2>&1; then
    status=1
    row "$tool" - - - $((SECONDS - start)) "no bundle: $log"
    return
  fi
  SANITIZER_TOOLS=$tool OUT=$out "$folder/run.sh" sanitizer 2>&1 | tee -a "$log"
  ((PIPESTATUS[0] == 0)) || status=1
  # For example "memcheck ok gpu_all: 38 passed, 0 failed, 41 s".
  line=$(grep -E "^$tool +(ok|FAILED) " "$log" | tail -1)
  if [[ -z $line ]]; then
    status=1
    row "$tool" - - - $((SECONDS - start)) "no result: $log"
    return
  fi
  read -r tool result line <<<"$line"
  read -r passed failed < <(sed -E 's/.* ([0-9]+) passed, ([0-9]+) failed.*/\1 \2/' <<<"$line")
  row "$tool" 1 "$passed" "$failed" "$(sed -E 's/.*, ([0-9]+) s.*/\1/' <<<"$line")" "$result"
}

run_gpu() {
  if ! have_nvidia_driver; then
    row gpu - - - 0 "no GPU: carry the folders of tools/gpu_bundle.sh to one, and run run.sh sanitizer of each"
  elif ! command -v compute-sanitizer >/dev/null; then
    row gpu - - - 0 "compute-sanitizer is not installed"
  else
    run_sanitizer memcheck .gpu_memcheck ""
    run_sanitizer racecheck .gpu_racecheck --config=racecheck
  fi
}

for check in "${checks[@]}"; do
  if [[ $check == gpu ]]; then
    run_gpu
  else
    run_bazel "$check"
  fi
done

printf '\n%-11s %7s %7s %7s %8s\n' check targets passed failed time
printf '%s\n' "${rows[@]}"
exit $status
