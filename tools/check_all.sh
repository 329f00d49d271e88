#!/bin/bash
# The checks that are too slow for every commit, and a table of them at the end: the host tests under the address
# and the undefined-behaviour sanitizer (one build for both) and under the thread sanitizer, every fuzz test for a
# minute, and the device tests under compute-sanitizer.
#
#   tools/check_all.sh [asan_ubsan] [tsan] [fuzz] [gpu] [-- TARGET...]     default: all of them, over //...
#   asan, ubsan                  either of the two alone
#   REPRISE_FUZZ_SECONDS=N       for each fuzz test (60)
#   JOBS=N                       of Bazel; default: as many as it chooses
#   OUT=DIR                      where logs go; default: a temporary folder
#
# The part `gpu` needs a GPU and compute-sanitizer; without them it says so in its row. It is tools/gpu_run.sh's
# part `sanitizer`, which tools/gpu_bundle.sh carries to another machine. Ends with 1 if a check fails.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." || exit 1
source tools/setup/device.sh

checks=()
while (($# > 0)) && [[ $1 != -- ]]; do
  case $1 in
    asan_ubsan | asan | ubsan | tsan | fuzz | gpu) checks+=("$1") ;;
    *) echo "check_all: no check '$1': expected asan_ubsan, asan, ubsan, tsan, fuzz or gpu" >&2 && exit 2 ;;
  esac
  shift
done
(($# == 0)) || shift
targets=("$@")
((${#checks[@]} > 0)) || checks=(asan_ubsan tsan fuzz gpu)
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

run_gpu() {
  local start=$SECONDS line tool result passed failed
  if ! have_nvidia_driver; then
    row gpu - - - 0 "no GPU: carry the folder of tools/gpu_bundle.sh to one, and run its run.sh sanitizer"
    return
  fi
  if ! REPRISE_GPU_DIR=.gpu_check tools/gpu_bundle.sh //tests:gpu_all >"$out/gpu.log" 2>&1; then
    status=1
    row gpu - - - $((SECONDS - start)) "no bundle: $out/gpu.log"
    return
  fi
  OUT=$out .gpu_check/run.sh sanitizer 2>&1 | tee -a "$out/gpu.log"
  ((PIPESTATUS[0] == 0)) || status=1
  # A line for each tool: "memcheck ok gpu_all: 38 passed, 0 failed, 41 s".
  while read -r tool result line; do
    read -r passed failed < <(sed -E 's/.* ([0-9]+) passed, ([0-9]+) failed.*/\1 \2/' <<<"$line")
    if [[ $result == skipped ]]; then
      row "$tool" - - - 0 "$line"
    else
      row "$tool" 1 "$passed" "$failed" "$(sed -E 's/.*, ([0-9]+) s.*/\1/' <<<"$line")" "$result"
    fi
  done < <(grep -E '^(memcheck|racecheck|sanitizer) +(ok|FAILED|skipped) ' "$out/gpu.log")
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
