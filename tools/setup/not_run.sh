# How a test that is a script says that it cannot run on this machine. Sourced.

# not_run REASON: ends the test. It passes for Bazel; in its XML it is a skipped case, which tools/ci/count_cases.sh
# counts and gives the reason of.
not_run() {
  local name=${0##*/}
  echo "not run: $1"
  [[ -z ${XML_OUTPUT_FILE:-} ]] || cat >"$XML_OUTPUT_FILE" <<END
<testsuites>
  <testsuite name="$name" tests="1" skipped="1">
    <testcase name="$name" status="run" result="skipped">
      <skipped message="$1"/>
    </testcase>
  </testsuite>
</testsuites>
END
  exit 0
}

# needs COMMAND...: ends the test if a command is not installed.
needs() {
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null 2>&1 || not_run "$command is not installed"
  done
}
