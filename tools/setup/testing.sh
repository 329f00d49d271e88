# What the tests of the set-up share: expectations, and commands that stand in for the real ones. Sourced.

source tools/setup/not_run.sh

failures=0
output=
status=0

# A folder for the test, whose bin/ comes first on PATH.
work=$(mktemp -d "${TEST_TMPDIR:-/tmp}/setup.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
PATH=$work/bin:$PATH

# run COMMAND...: runs it in a subshell (die ends it), and keeps its output and status.
run() {
  status=0
  output=$("$@" 2>&1) || status=$?
}

fail() {
  echo "FAILED: $*" >&2
  echo "  status $status, output: $output" >&2
  failures=$((failures + 1))
}

expect_status() {
  [[ $status == "$1" ]] || fail "$2: expected status $1"
}

expect_output() {
  [[ $output == *"$1"* ]] || fail "$2: expected output with '$1'"
}

expect_equal() {
  [[ $1 == "$2" ]] || fail "$3: expected '$2', got '$1'"
}

# stand_in NAME: makes the command NAME of what comes on standard input.
stand_in() {
  cat >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

finish() {
  ((failures == 0)) && echo "all passed"
  exit $((failures > 0))
}
