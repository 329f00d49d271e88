#!/bin/bash
# Finds slow tests in build events as Bazel writes them.
set -uo pipefail
source tools/setup/testing.sh

# event LABEL MILLISECONDS
event() {
  echo "{\"id\":{\"testResult\":{\"label\":\"$1\",\"run\":1,\"shard\":1,\"attempt\":1,\"configuration\":{\"id\":\"0\"}}},\"testResult\":{\"testActionOutput\":[{\"name\":\"test.log\",\"uri\":\"file:///log\"}],\"testAttemptDurationMillis\":\"$2\",\"status\":\"PASSED\",\"executionInfo\":{}}}"
}

{
  event //a:quick 10999
  event //a:slow 11000
  event //b:slower 61234
  event //a:sharded 9000
  event //a:sharded 20000
  event //a:sharded 100
  echo '{"id":{"targetCompleted":{"label":"//a:broken","configuration":{"id":"0"}}},"aborted":{}}'
} >"$work/events.json"
run tools/ci/slow_tests.sh 10 "$work/events.json" /dev/null
expect_equal "$status $output" "0 //b:slower 61
//a:sharded 20
//a:slow 11" "tests over the limit, the slowest first, shards as one"
run tools/ci/slow_tests.sh 100 "$work/events.json"
expect_equal "$status $output" "0 " "none is over the limit"
run tools/ci/slow_tests.sh 10 /dev/null
expect_equal "$status $output" "0 " "no event"

finish
