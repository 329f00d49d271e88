#!/bin/bash
# .ci/run with a bazelw that runs nothing: which builds there are, what is counted, and the reasons.
set -uo pipefail
source tools/setup/testing.sh

checkout=$work/checkout
mkdir -p "$checkout/.ci" "$checkout/tools/ci" "$checkout/tools/setup" "$checkout/examples/embed"
cp -L .ci/run "$checkout/.ci/"
cp -L tools/ci/count_cases.sh tools/ci/slow_tests.sh "$checkout/tools/ci/"
cp -L tools/setup/device.sh "$checkout/tools/setup/"
# FAKE_BREACH: what it finds.
cat >"$checkout/tools/ci/check_house.sh" <<'END'
#!/bin/bash
echo "${FAKE_BREACH:-the house is as DESIGN.md draws it}"
[[ -z ${FAKE_BREACH:-} ]]
END
chmod +x "$checkout/tools/ci/check_house.sh"
echo 'have_nvidia_driver() { [[ -n ${FAKE_DRIVER:-} ]]; }' >>"$checkout/tools/setup/device.sh"
touch "$checkout/examples/embed/WORKSPACE"
export calls=$work/calls

# Each run of tests has one case, which both builds write to one file. FAKE_FAILING: the device for which the
# case fails; FAKE_SKIPPED: the one for which it is skipped; FAKE_BROKEN: the command that ends before there are events;
# FAKE_SLOW: the folder and device whose commands do not end by themselves; FAKE_MILLISECONDS: what the test took.
cat >"$checkout/bazelw" <<'END'
#!/bin/bash
device=${REPRISE_DEVICE:-none}
echo "$(basename "$PWD") $device $*" | sed 's/ --[^ ]*//g' >>"$calls"
[[ $1 != "${FAKE_BROKEN:-}" ]] || { echo "bazelw: the disk is full." >&2 && exit 36; }
[[ "$(basename "$PWD") $device" != "${FAKE_SLOW:-}" ]] || exec sleep 60
for argument in "$@"; do
  [[ $argument != --build_event_json_file=* ]] || events=${argument#*=}
done
status=0
case $1 in
  query) printf '//a:kernel_test\n//a:gpu_test\n' ;;
  build) : >"$events" ;;
  test)
    xml=$calls.$(basename "$PWD").xml
    failure= verdict=PASSED
    if [[ ${FAKE_FAILING:-} == "$device" ]]; then
      failure='<failure message="no">' verdict=FAILED status=3
      echo "INFO: 1 test fails" >&2
    fi
    result=completed
    if [[ ${FAKE_SKIPPED:-} == "$device" ]]; then
      result=skipped failure='<skipped message="a_test.cc:1&#x0A;no GPU">'
    fi
    printf '<testcase name="Case" status="run" result="%s">\n%s\n</testcase>\n' "$result" "$failure" >"$xml"
    echo "{\"id\":{\"testResult\":{\"label\":\"//a:b\",\"run\":1}},\"testResult\":{\"testActionOutput\":[{\"name\":\"test.xml\",\"uri\":\"file://$xml\"}],\"testAttemptDurationMillis\":\"${FAKE_MILLISECONDS:-7}\",\"status\":\"$verdict\"}}" >"$events"
    ;;
esac
exit "$status"
END
chmod +x "$checkout/bazelw"

# ci: runs it from elsewhere; `output` is what it prints to standard output.
ci() {
  : >"$calls"
  (cd "$work" && env -u CI "$checkout/.ci/run" 2>"$work/stderr")
}
export -n REPRISE_DEVICE

run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "0 3 passed, 0 failed, 0 skipped" "no driver"
expect_equal "$(<"$calls")" "checkout none test //...
embed none test //...
checkout cuda query (kind(\"cc_(library|binary) rule\", //...) except attr(tags, manual, //...)) union attr(tags, \"requires-gpu|cuda-build\", tests(//...))
checkout cuda test //a:kernel_test //a:gpu_test" "no driver: the README's command, then the CUDA build"

FAKE_DRIVER=1 run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "0 2 passed, 0 failed, 0 skipped" "with a driver"
expect_equal "$(<"$calls")" "checkout none test //...
embed none test //..." "with a driver the README's command is the CUDA build"

REPRISE_DEVICE=cpu run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "0 3 passed, 0 failed, 0 skipped" "a device that the caller has set"

FAKE_FAILING=none run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "1 1 passed, 2 failed, 0 skipped" \
  "a case that fails in the first build, and passes in the second, which writes the same file"
FAKE_FAILING=cuda run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "1 2 passed, 1 failed, 0 skipped" "a case that fails in the CUDA build"
expect_output "bazelw test in . for cuda ended with status 3" "a case that fails in the CUDA build"

FAKE_SKIPPED=none run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "0 1 passed, 0 failed, 2 skipped" "a case that does not run in two parts"
expect_output "not run: 2 x no GPU" "the reason why cases did not run, of all parts together"

run ci
expect_output "bazelw test //... took 0 s of 1500 s
the whole run took" "times beside their budgets"
FAKE_MILLISECONDS=120900 run ci
expect_equal "$status" 0 "a test within its budget"
[[ $output != *"//a:b took"* ]] || fail "a test within its budget is not named"
FAKE_MILLISECONDS=121000 run ci
expect_equal "$status" 0 "a test that is a little over its budget"
expect_output "//a:b took 121 s of 120 s: over its budget" "a test that is a little over its budget"
FAKE_MILLISECONDS=361000 run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "1 3 passed, 1 failed, 0 skipped" "a test that takes three times its budget"
expect_output "//a:b took 361 s of 120 s: over its budget, and more than three times of it" "a test that takes three times its budget"

FAKE_BREACH="base includes what stands on it: base/a.h" run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "1 3 passed, 1 failed, 0 skipped" "sources that breach the plan"
expect_output "base includes what stands on it: base/a.h" "the breach is said"

FAKE_BROKEN=test run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "1 0 passed, 1 failed, 0 skipped" "tests that could not run"
expect_output "bazelw test in . ended with status 36: bazelw: the disk is full." "the reason is said"
FAKE_SLOW="checkout cuda" REPRISE_CI_MINUTES=0 run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "0 2 passed, 0 failed, 1 skipped" "a CUDA build without time"
expect_output "not run: bazelw query in . for cuda had not ended after 0 minutes" "what did not run is said"
FAKE_SLOW="embed none" REPRISE_CI_MINUTES=0 run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "0 2 passed, 0 failed, 1 skipped" "an embedding workspace without time"
expect_output "not run: bazelw test in examples/embed had not ended after 0 minutes" "what did not run is said"
FAKE_BROKEN=query run ci
expect_equal "$status $(tail -n 1 <<<"$output")" "1 2 passed, 1 failed, 0 skipped" "a list of tests that could not be made"

finish
