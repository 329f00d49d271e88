#!/bin/bash
# gpu_run.sh over a bundle of one program that tests nothing: what its part `sanitizer` runs and counts.
set -uo pipefail
source tools/setup/testing.sh

bundle=$work/checkout/.gpu
mkdir -p "$bundle" "$work/libtorch/lib" "$work/content"
touch "$work/libtorch/lib/libtorch_cuda.so"
cp -L tools/gpu_run.sh "$bundle/run.sh"
cp -L tools/gpu_pack.sh "$bundle/"
# FAKE_PASSED: how many cases the program says have passed.
cat >"$work/content/gpu_all" <<'END_PROGRAM'
#!/bin/bash
echo "[==========] ${FAKE_PASSED:-3} tests from 1 test suite ran. (1 ms total)"
echo "[  PASSED  ] ${FAKE_PASSED:-3} tests."
END_PROGRAM
chmod +x "$work/content/gpu_all"
tar -C "$work/content" -cJf "$bundle/bundle.tar.xz" .
# FAKE_RACE: racecheck finds something.
stand_in compute-sanitizer <<'END_SANITIZER'
#!/bin/bash
echo "$2" >>"$work/tools"
shift 6
"$@"
[[ -z ${FAKE_RACE:-} ]] || exit 9
END_SANITIZER
export work LIBTORCH=$work/libtorch OUT=$work/out
mkdir "$OUT"

sanitizer() {
  : >"$work/tools"
  "$bundle/run.sh" sanitizer
}
# The row of a tool, without its time.
row_of() { grep -E "^$1 " <<<"$output" | sed -E 's/, [0-9]+ s//; s/ +/ /g'; }

run sanitizer
expect_status 0 "both tools"
expect_equal "$(row_of memcheck)" "memcheck ok gpu_all: 3 passed, 0 failed" "memcheck"
expect_equal "$(row_of racecheck)" "racecheck ok gpu_all: 3 passed, 0 failed" "racecheck"

SANITIZER_TOOLS=racecheck run sanitizer
expect_equal "$status $(cat "$work/tools")" "0 racecheck" "one tool by name"

FAKE_PASSED=0 run sanitizer
expect_equal "$status $(row_of memcheck)" \
  "1 memcheck FAILED gpu_all: 0 passed, 0 failed, no case has run, see $OUT/memcheck-gpu_all.log" "no cases"

FAKE_RACE=yes SANITIZER_TOOLS=racecheck run sanitizer
expect_equal "$status $(row_of racecheck)" \
  "1 racecheck FAILED gpu_all: 3 passed, 0 failed, rc 9, see $OUT/racecheck-gpu_all.log" "a race"

finish
