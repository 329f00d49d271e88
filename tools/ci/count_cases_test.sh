#!/bin/bash
# Counts cases from build events and XML files as Bazel and gtest write them.
set -uo pipefail
source tools/setup/testing.sh

# event LABEL STATUS [XML]: one line of a build event file, for a test that has run.
event() {
  local xml=
  [[ -z ${3:-} ]] || xml=",{\"name\":\"test.xml\",\"uri\":\"file://$3\"}"
  echo "{\"id\":{\"testResult\":{\"label\":\"$1\",\"run\":1,\"shard\":1,\"attempt\":1,\"configuration\":{\"id\":\"0\"}}}," \
    "\"testResult\":{\"testActionOutput\":[{\"name\":\"test.log\",\"uri\":\"file:///log\"}$xml],\"status\":\"$2\",\"executionInfo\":{}}}"
}

count() {
  tools/ci/count_cases.sh "$work/events.json" 2>/dev/null
}

cat >"$work/mixed.xml" <<'END'
<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="5" failures="1" disabled="1" errors="0" time="0.001" name="AllTests">
  <testsuite name="PoolTest" tests="5" failures="1" disabled="1" skipped="1" errors="0" time="0.001">
    <testcase name="Passes" status="run" result="completed" time="0" classname="PoolTest" />
    <testcase name="PassesWithProperties" status="run" result="completed" time="0" classname="PoolTest">
      <properties>
        <property name="key" value="value"/>
      </properties>
    </testcase>
    <testcase name="Fails" status="run" result="completed" time="0" classname="PoolTest">
      <failure message="pool_test.cc:1&#x0A;first" type=""><![CDATA[pool_test.cc:1
first]]></failure>
      <failure message="pool_test.cc:2&#x0A;second" type=""><![CDATA[pool_test.cc:2
second]]></failure>
    </testcase>
    <testcase name="Skips" status="run" result="skipped" time="0" classname="PoolTest">
      <skipped message="no GPU"><![CDATA[no GPU]]></skipped>
    </testcase>
    <testcase name="DISABLED_Waits" status="notrun" result="suppressed" time="0" classname="PoolTest" />
  </testsuite>
</testsuites>
END
cat >"$work/none.xml" <<'END'
<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="0" failures="0" disabled="0" errors="0" time="0" name="AllTests">
</testsuites>
END
# What Bazel writes for a test that writes nothing itself, with a log that looks like a result.
cat >"$work/shell.xml" <<'END'
<?xml version="1.0" encoding="UTF-8"?>
<testsuites>
  <testsuite name="tools/shell_test" tests="1" failures="0" errors="0">
    <testcase name="tools/shell_test" status="run" duration="0" time="0"></testcase>
      <system-out>
Generated test.log (if the file is not UTF-8, then this may be unreadable):
<![CDATA[
    <testcase name="Printed" status="run">
      <failure message="printed">
]]>
      </system-out>
  </testsuite>
</testsuites>
END
sed -e 's/errors="0"/errors="1"/' -e 's|time="0"></testcase>|time="0"><error message="exited with error code 1"></error></testcase>|' \
  "$work/shell.xml" >"$work/shell_failed.xml"

event //a:mixed_test FAILED "$work/mixed.xml" >"$work/events.json"
run count
expect_equal "$output" "2 1 2" "passed, failed twice in one case, skipped and disabled cases"
run tools/ci/count_cases.sh "$work/events.json"
expect_output "FAILED: //a:mixed_test Fails" "a failed case is named"
expect_output "NOT RUN: 1 case: no GPU" "why a case did not run"
expect_output "NOT RUN: 1 case: disabled in the source" "a case that no run takes"

event //a:shell_test PASSED "$work/shell.xml" >"$work/events.json"
run count
expect_equal "$output" "1 0 0" "a test without cases of its own; what it prints does not count"

event //a:shell_test FAILED "$work/shell_failed.xml" >"$work/events.json"
run count
expect_equal "$output" "0 1 0" "a failed test without cases of its own"

event //a:empty_test PASSED "$work/none.xml" >"$work/events.json"
run count
expect_equal "$output" "0 0 1" "a test that has no case"
run tools/ci/count_cases.sh "$work/events.json"
expect_output "NOT RUN: 1 case: the test has no case in this build" "a test that has no case"

# As gtest 1.12 writes it, with a place, a second line, and characters that XML knows.
cat >"$work/skipped.xml" <<'END'
<testsuites tests="4" failures="0" disabled="0" errors="0" time="0" name="AllTests">
  <testsuite name="PoolTest" tests="4" failures="0" disabled="0" skipped="4" errors="0" time="0">
    <testcase name="A" status="run" result="skipped" time="0" classname="PoolTest">
      <skipped message="pool_test.cc:7&#x0A;2 GPUs &lt; 4 &amp; no &quot;gloo&quot;&#x0A;here"><![CDATA[pool_test.cc:7
2 GPUs]]></skipped>
    </testcase>
    <testcase name="B" status="run" result="skipped" time="0" classname="PoolTest">
      <skipped message="pool_test.cc:9&#x0A;2 GPUs &lt; 4 &amp; no &quot;gloo&quot;&#x0A;here"><![CDATA[pool_test.cc:9
2 GPUs]]></skipped>
    </testcase>
    <testcase name="C" status="run" result="skipped" time="0" classname="PoolTest" />
    <testcase name="D" status="run" result="skipped" time="0" classname="PoolTest" />
  </testsuite>
</testsuites>
END
event //a:skipped_test PASSED "$work/skipped.xml" >"$work/events.json"
run tools/ci/count_cases.sh "$work/events.json"
expect_output 'NOT RUN: 2 cases: 2 GPUs < 4 & no "gloo" here' "cases with one reason are one line"
expect_output "NOT RUN: 2 cases: no reason given (//a:skipped_test)" "a reason that is missing"
expect_output "0 0 4" "skipped cases are counted"

{
  event //a:crashed_test FAILED "$work/none.xml"
  event //a:slow_test TIMEOUT
  event //a:lost_test FAILED "$work/no-such.xml"
  event //a:mixed_test FAILED "$work/mixed.xml"
} >"$work/events.json"
run count
expect_equal "$output" "2 4 2" "crashed, too slow, without XML"

{
  echo '{"id":{"targetCompleted":{"label":"//a:broken","configuration":{"id":"0"}}},"aborted":{}}'
  echo '{"id":{"targetCompleted":{"label":"//a:broken","configuration":{"id":"0"}}},"completed":{"failureDetail":{}}}'
  echo '{"id":{"targetCompleted":{"label":"//a:built","configuration":{"id":"0"}}},"completed":{"success":true}}'
} >"$work/events.json"
run count
expect_equal "$output" "0 1 0" "a target that could not be built, told twice"

echo '{"id":{"targetCompleted":{"label":"//a:gpu_only","configuration":{"id":"0"}}},"aborted":{"reason":"SKIPPED","description":"Target //a:gpu_only build was skipped."}}' \
  >"$work/events.json"
run count
expect_equal "$output" "0 0 0" "a target that is not compatible with what is built for"

{
  event //a:stopped INCOMPLETE
  event //a:waiting NO_STATUS
  echo '{"id":{"targetCompleted":{"label":"//a:later","configuration":{"id":"0"}}},"aborted":{"reason":"USER_INTERRUPTED"}}'
} >"$work/events.json"
run count
expect_equal "$output" "0 0 0" "targets that an interruption of Bazel left undone"

: >"$work/events.json"
run count
expect_equal "$output" "0 0 0" "no event"

finish
