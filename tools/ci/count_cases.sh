#!/bin/bash
# count_cases.sh EVENTS...: counts the test cases of a Bazel run from its build events
# (--build_event_json_file) and the XML file that each test has written, cached results included.
# Prints PASSED FAILED SKIPPED on one line. Prints on standard error what failed, and the reasons why cases were
# skipped, each with their number:
#   FAILED: //room:test Case
#   NOT RUN: 12 cases: no GPU on this machine
#
# A test that failed without a failed case (it crashed, ran out of time, or left no XML), and a target that
# could not be built, count as one failed case each. A test that passed without a case counts as one skipped case.
# Two kinds of targets do not count: those that Bazel skipped because they are not compatible with the device, and
# those that were not built when Bazel was interrupted.
set -euo pipefail

reasons=$(mktemp)
trap 'rm -f "$reasons"' EXIT

# Prints "passed failed skipped" of one test.xml, and the failed cases on standard error. Adds a line to the file
# `reasons` for each skipped case.
count_xml() {
  awk -v label="$2" -v reasons="$reasons" '
    function give_reason(reason) {
      gsub(/&quot;/, "\"", reason)
      gsub(/&apos;/, "\047", reason)
      gsub(/&lt;/, "<", reason)
      gsub(/&gt;/, ">", reason)
      gsub(/&amp;/, "\\&", reason)
      print reason >> reasons
    }
    # The message of the skipped case before this line, which may have none.
    function end_skipped() {
      if (is_skipped) give_reason("no reason given (" label ")")
      is_skipped = 0
    }
    /<system-out>/ { in_output = 1 }
    !in_output && /^ *<testcase / {
      end_skipped()
      cases++
      failed_already = 0
      name = $0
      sub(/^.*<testcase name="/, "", name)
      sub(/".*$/, "", name)
      if (/status="notrun"/) {
        skipped++
        give_reason("disabled in the source")
      } else if (/result="skipped"/) {
        skipped++
        is_skipped = 1
      }
    }
    # gtest puts the place before the message: "room/x_test.cc:12&#x0A;no GPU".
    !in_output && is_skipped && /<skipped message="/ {
      reason = $0
      sub(/^.*<skipped message="/, "", reason)
      sub(/".*$/, "", reason)
      sub(/^[^&]*:[0-9]+&#x0A;/, "", reason)
      gsub(/&#x0A;/, " ", reason)
      give_reason(reason)
      is_skipped = 0
    }
    !in_output && cases && !failed_already && /<(failure|error)[ >]/ && !/errors="/ {
      failed++
      failed_already = 1
      print "FAILED: " label " " name > "/dev/stderr"
    }
    /<\/system-out>/ { in_output = 0 }
    END {
      end_skipped()
      print cases - failed - skipped, failed + 0, skipped + 0
    }
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
  elif ((p + f + s == 0)); then
    s=1
    echo "the test has no case in this build" >>"$reasons"
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
sort "$reasons" | uniq -c | sort -rn | while read -r number reason; do
  echo "NOT RUN: $number case$( ((number == 1)) || echo s): $reason" >&2
done
echo "$passed $failed $skipped"
