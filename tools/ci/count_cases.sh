#!/bin/bash
# count_cases.sh EVENTS...: counts the test cases of a Bazel run from its build events
# (--build_event_json_file) and the XML file that each test has written, cached results included.
# Prints PASSED FAILED SKIPPED on one line, and the names of what failed on standard error.
#
# A test that failed without a failed case (it crashed, ran out of time, or left no XML), and a target that
# could not be built, count as one failed case each. Two kinds of targets do not count: those
# that Bazel skipped because they are not compatible with the device, and those that were not built when Bazel was
# interrupted.
set -euo pipefail

# Prints "passed failed skipped" of one test.xml, and the failed cases on standard error.
count_xml() {
  awk -v label="$2" '
    /<system-out>/ { in_output = 1 }
    !in_output && /^ *<testcase / {
      cases++
      failed_already = 0
      name = $0
      sub(/^.*<testcase name="/, "", name)
      sub(/".*$/, "", name)
      if (/result="skipped"/ || /status="notrun"/) skipped++
    }
    !in_output && cases && !failed_already && /<(failure|error)[ >]/ && !/errors="/ {
      failed++
      failed_already = 1
      print "FAILED: " label " " name > "/dev/stderr"
    }
    /<\/system-out>/ { in_output = 0 }
    END { print cases - failed - skipped, failed + 0, skipped + 0 }
  ' "$1"
}

passed=0 failed=0 skipped=0
while IFS=$'\t' read -r kind label status xml; do
  p=0 f=0 s=0
  if [[ $kind == test && -n $xml && -e $xml ]]; then
    read -r p f s < <(count_xml "$xml" "$label")
  fi
  if [[ $status != PASSED ]] && ((f == 0)); then
    f=1
    echo "FAILED: $label ($status)" >&2
  fi
  ((passed += p, failed += f, skipped += s)) || true
done < <(
  # One line an event: test results, and targets that could not be built, which Bazel may tell twice.
  cat "$@" | sed -n \
    -e '/^{"id":{"testResult":/{
          /"status":"\(INCOMPLETE\|NO_STATUS\)"/d
          s/.*"label":"\([^"]*\)".*"name":"test.xml","uri":"file:\/\/\([^"]*\)".*"status":"\([A-Z_]*\)".*/test\t\1\t\3\t\2/p
          t
          s/.*"label":"\([^"]*\)".*"status":"\([A-Z_]*\)".*/test\t\1\t\2\t/p
        }' \
    -e '/^{"id":{"targetCompleted":/{
          /"success":true/d
          /"reason":"SKIPPED"/d
          /"reason":"USER_INTERRUPTED"/d
          s/.*"targetCompleted":{"label":"\([^"]*\)".*/target\t\1\tcould not be built\t/p
        }' | sort -u
)
echo "$passed $failed $skipped"
