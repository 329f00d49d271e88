#!/bin/bash
# check_all.sh with a bazelw that runs nothing: which checks there are, what is counted, and the table.
set -uo pipefail
source tools/setup/testing.sh

checkout=$work/checkout
mkdir -p "$checkout/tools/ci" "$checkout/tools/setup"
cp -L tools/check_all.sh "$checkout/tools/"
cp -L tools/ci/count_cases.sh "$checkout/tools/ci/"
cp -L tools/setup/device.sh "$checkout/tools/setup/"
echo 'have_nvidia_driver() { [[ -n ${FAKE_DRIVER:-} ]]; }' >>"$checkout/tools/setup/device.sh"
export calls=$work/calls

# Two targets, of two cases and of one. FAKE_FAILING: the configuration in which a case of the first fails.
cat >"$checkout/bazelw" <<'END_BAZELW'
#!/bin/bash
echo "$*" >>"$calls"
for argument in "$@"; do
  case $argument in
    --config=*) config=${argument#*=} ;;
    --build_event_json_file=*) events=${argument#*=} ;;
  esac
done
xml() { echo '<testsuites>' && printf '    %s\n' "$@" && echo '</testsuites>'; }
second='<testcase name="Second" status="run" />'
[[ ${FAKE_FAILING:-} != "$config" ]] || second='<testcase name="Second" status="run"><failure message="no">'
xml '<testcase name="First" status="run" />' "$second" >"$work/a.xml"
xml '<testcase name="Third" status="run" result="skipped" />' >"$work/b.xml"
for name in a b; do
  echo "{\"id\":{\"testResult\":{\"label\":\"//room:$name\",\"run\":1}},\"testResult\":{\"testActionOutput\":[{\"name\":\"test.xml\",\"uri\":\"file://$work/$name.xml\"}],\"status\":\"PASSED\"}}"
done >"$events"
[[ ${FAKE_FAILING:-} != "$config" ]] || exit 3
END_BAZELW
# A bundle's run.sh, which prints the flags of its build and its tools. FAKE_RESULT: what memcheck gives.
cat >"$checkout/tools/gpu_bundle.sh" <<'END_BUNDLE'
#!/bin/bash
[[ ${FAKE_RESULT:-} != unbuilt ]] || exit 1
mkdir -p "$REPRISE_GPU_DIR"
cat >"$REPRISE_GPU_DIR/run.sh" <<END_RUN
#!/bin/bash
echo "$REPRISE_GPU_DIR: flags '$REPRISE_BAZEL_FLAGS', tools '\$SANITIZER_TOOLS', parts '\$*'"
[[ \$SANITIZER_TOOLS != memcheck ]] || echo 'memcheck   ${FAKE_RESULT:-ok}       gpu_all: 38 passed, 0 failed, 41 s'
[[ \$SANITIZER_TOOLS != racecheck ]] || echo 'racecheck  ok       gpu_all: 37 passed, 0 failed, 52 s'
[[ \$SANITIZER_TOOLS == racecheck || '${FAKE_RESULT:-ok}' == ok ]]
END_RUN
chmod +x "$REPRISE_GPU_DIR/run.sh"
END_BUNDLE
chmod +x "$checkout/bazelw" "$checkout/tools/gpu_bundle.sh"
export work OUT=$work/out

check_all() {
  : >"$calls"
  "$checkout/tools/check_all.sh" "$@"
}

# A row of the table, without its time.
row_of() { grep -E "^$1 " <<<"$output" | tail -1 | sed -E 's/ +[0-9]+ s +/ /; s/ +/ /g; s/ $//'; }

run check_all
expect_status 0 "checks that pass"
expect_equal "$(row_of all_cases)" "all_cases 2 2 0 1 skipped" "all cases of matrices"
expect_equal "$(row_of gcc)" "gcc 2 2 0 1 skipped" "the tests compiled by g++"
expect_equal "$(row_of asan_ubsan)" "asan_ubsan 2 2 0 1 skipped" "both sanitizers of memory, in one run"
expect_equal "$(row_of tsan)" "tsan 2 2 0 1 skipped" "the thread sanitizer"
expect_equal "$(row_of fuzz)" "fuzz 2 2 0 1 skipped" "the fuzz tests"
expect_output "no GPU: carry the folders of tools/gpu_bundle.sh to one" "a machine without a GPU"
expect_equal "$(wc -l <"$calls")" "5" "one call for each configuration"
expect_equal "$(grep -c -- '-- //\.\.\.$' "$calls")" "5" "all targets"

FAKE_FAILING=tsan run check_all asan tsan -- //room:a //room:b
expect_status 1 "a check that fails"
expect_equal "$(row_of asan)" "asan 2 2 0 1 skipped" "a check before one that fails"
expect_equal "$(row_of tsan)" "tsan 2 1 1 1 skipped; bazelw ended with status 3: $OUT/tsan.log" "a check that fails"
expect_output "FAILED: //room:a Second" "the case that failed"
expect_equal "$(grep -c -- '-- //room:a //room:b$' "$calls")" "2" "targets by name"

JOBS=1 run check_all ubsan
expect_equal "$(grep -c -- '--jobs=1 --local_test_jobs=1' "$calls")" "1" "the number of jobs"

PATH=/usr/bin:/bin FAKE_DRIVER=yes run check_all gpu
expect_equal "$status $(row_of gpu)" "0 gpu - - - compute-sanitizer is not installed" "a GPU without the tool"
stand_in compute-sanitizer <<<'#!/bin/bash'
FAKE_DRIVER=yes run check_all gpu
expect_equal "$status $(row_of memcheck)" "0 memcheck 1 38 0 ok" "memcheck on a GPU"
expect_equal "$(row_of racecheck)" "racecheck 1 37 0 ok" "racecheck on a GPU"
expect_output ".gpu_memcheck: flags '', tools 'memcheck', parts 'sanitizer'" "memcheck over the kernels as they are"
expect_output ".gpu_racecheck: flags '--config=racecheck', tools 'racecheck', parts 'sanitizer'" \
  "racecheck over kernels made for it"
FAKE_DRIVER=yes FAKE_RESULT=FAILED run check_all gpu
expect_equal "$status $(row_of memcheck)" "1 memcheck 1 38 0 FAILED" "memcheck that fails"
expect_equal "$(row_of racecheck)" "racecheck 1 37 0 ok" "racecheck after a memcheck that fails"
FAKE_DRIVER=yes FAKE_RESULT=unbuilt run check_all gpu
expect_equal "$status $(row_of racecheck)" "1 racecheck - - - no bundle: $OUT/gpu-racecheck.log" "no bundle"
FAKE_DRIVER=yes FAKE_RESULT=silent run check_all gpu
expect_equal "$status $(row_of memcheck)" "1 memcheck - - - no result: $OUT/gpu-memcheck.log" "no result"

run check_all valgrind
expect_equal "$status $output" \
  "2 check_all: no check 'valgrind': expected all_cases, gcc, asan_ubsan, asan, ubsan, tsan, fuzz or gpu" "a check that is none"

finish
