#!/bin/bash
# slow_tests.sh SECONDS EVENTS...: prints "LABEL SECONDS" for each test of a Bazel run that took longer than SECONDS,
# the slowest first, from its build events (--build_event_json_file). A test in shards takes as long as its slowest
# shard. A cached result has the time of its original run.
set -euo pipefail
limit=$1
shift
sed -n 's/^{"id":{"testResult":{"label":"\([^"]*\)".*"testAttemptDurationMillis":"\([0-9]*\)".*/\1 \2/p' "$@" |
  awk -v limit="$limit" '
    $2 > most[$1] { most[$1] = $2 }
    END { for (label in most) if (int(most[label] / 1000) > limit) printf "%s %d\n", label, most[label] / 1000 }
  ' | sort -k 2,2nr -k 1
