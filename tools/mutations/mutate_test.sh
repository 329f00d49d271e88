#!/bin/bash
# mutate.py over a small project, with a bazelw that looks at the source in place of building it.
set -uo pipefail
source tools/setup/testing.sh
needs git

export REPRISE_CACHE=$work/cache GIT_CONFIG_NOSYSTEM=1 HOME=$work
project=$work/project
mkdir -p "$project/room" "$project/tools/mutations"
cat >"$project/room/BUILD" <<'END_BUILD'
reprise_cc_test(
    name = "tests",
    srcs = ["sum_test.cc"],
)

reprise_gpu_test(
    name = "gpu_tests",
    srcs = ["sum_gpu_test.cc"],
)
END_BUILD
cat >"$project/room/sum_test.cc" <<'END_CC'
TEST(SumTest, AddsTwoNumbers) {}
TEST(SumTest, AddsNone) {}
END_CC
echo 'TEST(SumGpuTest, Adds) {}' >"$project/room/sum_gpu_test.cc"
cat >"$project/room/sum.cc" <<'END_CC'
int Sum(int a, int b) {
  return a + b;
}
int SumOfNone() {
  return 0;
}
END_CC
# The test fails where Sum() does not add, hangs (which Bazel ends) at "for", does not build at "?", and is refused by
# a static_assert at "0 + 0".
cat >"$project/bazelw" <<'END_BAZELW'
#!/bin/bash
echo "$REPRISE_DEVICE $*" >>"$CALLS"
[[ -z ${FAKE_SLEEP:-} ]] || sleep "$FAKE_SLEEP"
grep -q '?' room/sum.cc && exit 1
grep -q '0 + 0' room/sum.cc && echo 'room/sum_test.cc:1: error: static assertion failed' && exit 1
grep -q 'for (' room/sum.cc && echo "//room:tests TIMEOUT in 120 s" && exit 3
grep -q 'return a + b' room/sum.cc && exit 0
echo '[  FAILED  ] SumTest.AddsTwoNumbers (0 ms)'
exit 3
END_BAZELW
chmod +x "$project/bazelw"
export CALLS=$work/calls
touch "$CALLS"
git -C "$project" init -q
git -C "$project" add -A
git -C "$project" -c user.name=n -c user.email=e commit -qm "a sum"

mutate() { tools/mutations/mutate.py --root "$project" "$@"; }

# faults NAME AFTER...: a fault of each name, which puts AFTER in the place of the sum.
faults() {
  while (($# > 0)); do
    printf '== %s\nwhy: a test\nfile: room/sum.cc\ntest: //room:tests SumTest.*\n-  return a + b;\n+%s\n' "$1" "$2"
    shift 2
  done >"$project/tools/mutations/faults.txt"
}

# ---- What does not fit.

# refused WHAT FROM TO BREACH: with FROM replaced by TO, a good fault has this breach and no other.
refused() {
  faults subtracts '  return a - b;'
  sed -i "s|$2|$3|" "$project/tools/mutations/faults.txt"
  run mutate --check
  expect_equal "$status $output" "1 $4" "$1"
}
faults subtracts '  return a - b;'
run mutate --check
expect_equal "$status $output" "0 " "a fault that fits"
refused "text that is not there" 'return a + b' 'return a * b' \
  "fault subtracts: room/sum.cc does not have the text to be replaced exactly once"
refused "text that is there twice" '-  return a + b;' '-}' \
  "fault subtracts: room/sum.cc does not have the text to be replaced exactly once"
refused "part of a line" '-  return a + b;' '-return a + b;' \
  "fault subtracts: room/sum.cc does not have the text to be replaced exactly once"
refused "no change" '+  return a - b;' '+  return a + b;' "fault subtracts: it has no 'why', or changes nothing"
refused "no such source" 'file: room/sum.cc' 'file: room/product.cc' "fault subtracts: there is no room/product.cc"
refused "no such target" '//room:tests' '//room:test' "fault subtracts: //room:test is no test that a BUILD file names"
refused "no such case" 'SumTest' 'ProductTest' "fault subtracts: //room:tests has no case ProductTest.*"
refused "one case of two" 'SumTest.\*' 'SumTest.*:SumTest.Multiplies' \
  "fault subtracts: //room:tests has no case SumTest.Multiplies"
refused "a GPU that is not said" '//room:tests SumTest' '//room:gpu_tests SumGpuTest' \
  "fault subtracts: //room:gpu_tests is a reprise_gpu_test, and gpu: is ''"
refused "a line that is none" 'why:' 'because:' "tools/mutations/faults.txt:2: neither a fault, a field nor a line of source: because: a test
fault subtracts: it has no 'why', or changes nothing"
faults subtracts '  return a - b;' subtracts '  return b;'
run mutate --check
expect_output "its name is not new" "a name twice"
expect_equal "$(<"$CALLS")" "" "a check builds nothing"

# ---- Runs.

faults subtracts '  return a - b;' hangs '  for (;;) {}' same '  return a + b;  // as before' broken '  return ?;' \
  constant '  return 0 + 0;'
run mutate --jobs 1
expect_status 1 "a run in which a fault escapes"
expect_output "subtracts  " "a fault by name"
expect_output "found by SumTest.AddsTwoNumbers" "a fault that a case finds"
expect_output "found: out of time" "a fault that hangs"
expect_output "ESCAPED" "a fault that no case finds"
expect_output "does not build" "a fault that does not build is not found"
expect_output "found by a static_assert" "a fault that a test refuses to be built with"
expect_output "3 of 5 faults were found" "the sum"
expect_equal "$(head -1 "$CALLS")" \
  "cpu test --noshow_progress --jobs=1 --test_output=errors --test_timeout=120 --test_filter=SumTest.* //room:tests" \
  "first without a fault"
expect_equal "$(grep -c remote_upload "$CALLS")" "5" "what a fault yields is not kept"
expect_equal "$(git -C "$project" status --porcelain)" "?? tools/" "the checkout is as it was"
tree=$(echo "$REPRISE_CACHE"/mutations/*.lock)
tree=${tree%.lock}
expect_equal "$(git -C "$tree" status --porcelain)" "" "the worktree is as it was"

run mutate --only subtracts
expect_equal "$status ${output##*$'\n'}" "0 1 of 1 faults were found" "one fault"
run mutate --only multiplies
expect_output "no such fault: multiplies" "a fault that is not there"
run mutate --only subtracts --gpu
expect_output "leave out --gpu" "a fault of the other kind"
run mutate --list
expect_output "room/sum.cc" "the list"

# The source as it is in the checkout, not as it was committed: without the fault the test fails already.
sed -i 's/return a + b;/return a + b + 1 - 1;/' "$project/room/sum.cc"
sed -i 's/return a + b;/return a + b + 1 - 1;/' "$project/tools/mutations/faults.txt"
run mutate --only subtracts
expect_equal "$status ${output##*$'\n'}" "0 1 of 1 faults were found" "changes that are not committed"
sed -i 's/return a + b + 1 - 1;/return b + a;/' "$project/room/sum.cc" "$project/tools/mutations/faults.txt"
run mutate --only subtracts
expect_output "//room:tests fails without the fault, or does not build" "a test that fails in any case"
expect_status 1 "a test that fails in any case"
git -C "$project" checkout -q room/sum.cc

# Interrupted while the fault is planted: the source is restored.
faults subtracts '  return a - b;'
: >"$CALLS"
FAKE_SLEEP=1 tools/mutations/mutate.py --root "$project" >"$work/interrupted" 2>&1 &
pid=$!
for _ in $(seq 100); do
  (($(grep -c . "$CALLS") >= 2)) && break
  sleep 0.1
done
expect_equal "$(grep -c 'a - b' "$tree/room/sum.cc")" "1" "the fault is planted in the worktree"
kill -TERM "$pid"
wait "$pid"
expect_equal "$?" "1" "the status of a run that was ended"
expect_equal "$(git -C "$tree" status --porcelain)" "" "the worktree after a run that was ended"
expect_equal "$(git -C "$project" diff --stat -- room)" "" "the checkout after a run that was ended"

finish
