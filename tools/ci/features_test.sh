#!/bin/bash
# features.py over a small project: a page that is right, then each thing that may be wrong with it.
set -uo pipefail
source tools/setup/testing.sh

project=$work/project
mkdir -p "$project/docs" "$project/room/testing" "$project/tests"
cat >"$project/room/BUILD" <<'END_BUILD'
load("//tools:build_defs.bzl", "reprise_cc_test", "reprise_gpu_test")

reprise_cc_test(
    name = "tests",
    srcs = ["sum_test.cc"] + select({"//conditions:default": ["suite_test.cc"]}),
    deps = [":sum"],
)

reprise_gpu_test(
    name = "gpu_tests",
    srcs = glob(["*_gpu_test.cc"]),
)

reprise_gpu_test(
    name = "forgotten_gpu_test",
    srcs = ["sum_gpu_test.cc"],
)

sh_test(
    name = "shell_test",
    srcs = ["shell_test.sh"],
)

[reprise_cc_test(name = name) for name in ["made_by_a_comprehension"]]
END_BUILD
cat >"$project/tests/BUILD" <<'END_BUILD'
reprise_gpu_test_binary(
    name = "gpu_all",
    tests = ["//room:gpu_tests"],
)
END_BUILD
cat >"$project/room/sum_test.cc" <<'END_CC'
TEST(SumTest, AddsTwoNumbers) {}
TEST_F(SumTest,
       HasALongName) {}
TEST(SumTest, DISABLED_Waits) {}
// TEST(SumTest, IsACommentOnly) {}
END_CC
cat >"$project/room/testing/suite.cc" <<'END_CC'
TEST_P(Suite, ServesEveryDevice) {}
END_CC
echo 'INSTANTIATE_TEST_SUITE_P(Cpu, Suite, testing::Values(1));' >"$project/room/suite_test.cc"
cat >"$project/room/sum_gpu_test.cc" <<'END_CC'
#include "room/sum.h"
#include "reprise/room/testing/replays.h"

// Braces of comments, }, and of strings are no blocks.
class SumGpuTest : public testing::Test {
 protected:
  SumGpuTest() : numbers_{1, 2}, graph_(nullptr) { name_ = "}"; }
  void SetUp() override {}
  void Launch() { cudaGraphLaunch(graph_, nullptr); }
};
int Added(const std::vector<int>& numbers = {}) {
  // CapturedWork
  return std::accumulate(numbers.begin(), numbers.end(), 0);
}
TEST_F(SumGpuTest, AReplayedGraphAdds) { Launch(); }
TEST_F(SumGpuTest, AReplayedGraphAddsByWhatTestsShare) { EXPECT_TRUE(RunTwice({1, 2})); }
TEST_F(SumGpuTest, AddsEagerly) { EXPECT_EQ(Added({1, 2}), Sum(1, 2)); }
INSTANTIATE_TEST_SUITE_P(
    Cuda, Suite, testing::Values(1));
END_CC

echo 'bool RunTwice(const Numbers& numbers);' >"$project/room/testing/replays.h"
cat >"$project/room/testing/replays.cc" <<'END_CC'
namespace {
bool Replayed(const Numbers& numbers) { return CapturedWork(numbers).result(); }
}
bool RunTwice(const Numbers& numbers) {
  return Replayed(numbers);
}
END_CC
# The code under test is not searched.
echo 'inline int Sum(int a, int b) { return CapturedWork(a + b); }' >"$project/room/sum.h"

# features ARGUMENTS...: runs it over the project.
features() {
  tools/ci/features.py --root "$project" "$@"
}

# data CPU GPU GRAPH: writes a page of one row, whose cells are these lines, and prints it.
data() {
  printf '> An introduction.\n\n== A. Sums\n\nA1 sums of numbers\n  CPU: %b\n  GPU: %b\n  graph: %b\n' "$@" \
    >"$project/docs/features.txt"
  features --write >/dev/null
}

cpu='yes\n    //room:tests SumTest.AddsTwoNumbers\n      Cpu/Suite.ServesEveryDevice/0'
gpu='tier 1\n    //room:gpu_tests SumGpuTest.* Cuda/Suite.ServesEveryDevice'
graph='yes\n    //room:gpu_tests SumGpuTest.AReplayedGraphAdds'

data "$cpu" "$gpu" "$graph"
run features
expect_equal "$status $output" "0 " "a row whose tests are there"
expect_equal "$(<"$project/docs/features.md")" "# Features

An introduction.

## A. Sums

| # | feature | CPU | GPU | in a graph |
|---|---|---|---|---|
| A1 | sums of numbers | yes | tier 1 | yes |

Tests:

- **A1**
  - CPU: \`//room:tests\` \`SumTest.AddsTwoNumbers\` \`Cpu/Suite.ServesEveryDevice/0\`
  - GPU: \`//room:gpu_tests\` \`SumGpuTest.*\` \`Cuda/Suite.ServesEveryDevice\`
  - in a graph: \`//room:gpu_tests\` \`SumGpuTest.AReplayedGraphAdds\`" "the page"
run features --cases //room:tests
expect_equal "$output" "Cpu/Suite.ServesEveryDevice
SumTest.AddsTwoNumbers
SumTest.DISABLED_Waits
SumTest.HasALongName" "the cases of a target"

run features --graphs
expect_equal "$output" "| # | in a graph | cases on a GPU | others | targets |
|---|---|---|---|---|
| A1 | yes | 1 | 0 | \`//room:gpu_tests\` |

1 rows claim a captured graph; 0 of those that a GPU serves have no case there." "the rows that claim a graph"

echo "by hand" >>"$project/docs/features.md"
run features
expect_equal "$status $output" "1 docs/features.md is not what docs/features.txt prints: run tools/ci/features.py --write" \
  "a page that was edited"

# refused CPU GPU GRAPH BREACH WHAT: a row with these cells has this breach and no other.
refused() {
  data "$1" "$2" "$3"
  run features
  expect_equal "$status $output" "1 $4" "$5"
}

refused 'yes' "$gpu" "$graph" "A1, CPU: 'yes' names no test" "a claim without a test"
refused '' "$gpu" "$graph" "A1, CPU: empty; say 'not built', 'not held: why' or '– (why)'" "a cell without a word"
refused 'not built\n    //room:tests SumTest.AddsTwoNumbers' "$gpu" "$graph" \
  "A1, CPU: 'not built', and yet it names tests" "tests of what is not built"
refused 'yes\n    //room:test SumTest.AddsTwoNumbers' "$gpu" "$graph" \
  "A1, CPU: //room:test is no test that a BUILD file names" "a target that is not there"
refused 'yes\n    //room:tests SumTest.Multiplies' "$gpu" "$graph" \
  "A1, CPU: //room:tests has no case SumTest.Multiplies" "a case that is not there"
refused 'yes\n    //room:tests Product*' "$gpu" "$graph" \
  "A1, CPU: //room:tests has no case Product*" "a pattern that no case has"
refused 'yes\n    //room:tests SumTest.IsACommentOnly' "$gpu" "$graph" \
  "A1, CPU: //room:tests has no case SumTest.IsACommentOnly" "a case in a comment"
refused 'yes\n    //room:tests SumTest.DISABLED_Waits' "$gpu" "$graph" \
  "A1, CPU: //room:tests has no case SumTest.DISABLED_Waits" "a case that never runs"
refused 'yes\n    //room:tests Suite.ServesEveryDevice' "$gpu" "$graph" \
  "A1, CPU: //room:tests has no case Suite.ServesEveryDevice" "a case with parameters without its instance"
refused 'yes\n    //room:tests Cuda/Suite.ServesEveryDevice' "$gpu" "$graph" \
  "A1, CPU: //room:tests has no case Cuda/Suite.ServesEveryDevice" "an instance of another target"
refused 'yes\n    //room:tests SumTest.AddsTwoNumbers/0' "$gpu" "$graph" \
  "A1, CPU: //room:tests has no case SumTest.AddsTwoNumbers/0" "a parameter of a case without any"
refused 'yes\n    //room:tests' "$gpu" "$graph" "A1, CPU: //room:tests names no case" "a target without a case"
refused "$gpu" "$gpu" "$graph" "A1, CPU: //room:gpu_tests is a reprise_gpu_test" "a test of the GPU for the CPU"
refused "$cpu" "$cpu" "$graph" "A1, GPU: //room:tests is a reprise_cc_test" "a test of the CPU for the GPU"
refused "$cpu" 'yes\n    //room:forgotten_gpu_test SumGpuTest.*' "$graph" \
  "A1, GPU: //room:forgotten_gpu_test is carried to no GPU: //tests:gpu_all does not have it" \
  "a test that no GPU ever sees"
refused "$cpu" "$gpu" "$cpu" "A1, graph: no test on a GPU captures it" "a graph that only the CPU replays"
refused "$cpu" "$gpu" 'yes\n    //room:gpu_tests SumGpuTest.AddsEagerly' \
  "A1, graph: //room:gpu_tests SumGpuTest.AddsEagerly captures nothing" "a case in a graph that captures nothing"
refused "$cpu" "$gpu" "$graph Cuda/Suite.ServesEveryDevice" \
  "A1, graph: //room:gpu_tests Cuda/Suite.ServesEveryDevice captures nothing" "a case with parameters likewise"
refused "$cpu" "$gpu" '–' "A1, graph: '–' without a reason" "a cell that does not say why"
refused "$cpu" "$gpu" "${graph/yes/yes; small ones are not run yet}" \
  "A1, graph: 'yes; small ones are not run yet' is no claim; say 'not held: why'" "a claim that takes itself back"
refused "$cpu" "$gpu" "$graph\n  shape: round" \
  "docs/features.txt:13: A1 says 'shape' twice, or it is none of CPU, GPU, graph" "a cell that is none"
refused "$cpu" "$gpu" "$graph\n?" \
  "docs/features.txt:13: neither a section, a row, a cell nor a test: ?" "a line that is none"
refused "$cpu" "$gpu" "$graph\n\nA1 again\n  CPU: – (no)\n  GPU: – (no)\n  graph: – (no)" "A1 is there twice" "a row that is there twice"

# Tests in runner/ hold a row, but not an operator.
mkdir "$project/runner"
echo 'reprise_cc_test(name = "tests", srcs = ["sum_test.cc", "suite_test.cc"])' >"$project/runner/BUILD"
cp "$project/room/sum_test.cc" "$project/room/suite_test.cc" "$project/runner"
product=${cpu//room/runner}
data "$product" "$gpu" "$graph"
run features
expect_equal "$status $output" "0 " "a row whose tests are the product's"
sed -i 's/^A1 /A1 operator: /' "$project/docs/features.txt"
features --write >/dev/null
run features
expect_equal "$status $output" "1 A1, CPU: //runner:tests is a test of the product, which uses no operator" \
  "a test of the product for an operator"
data "$cpu" "$gpu" "$graph"
sed -i 's/^A1 /A1 operator: /' "$project/docs/features.txt"
features --write >/dev/null
run features
expect_equal "$status $output" "0 " "an operator"

for cell in 'not held: no test adds on a GPU' '– (nothing to add)' 'not built'; do
  data "$cpu" "$cell" "$cell"
  run features
  expect_equal "$status $output" "0 " "'$cell' claims nothing"
done
for case in AReplayedGraphAddsByWhatTestsShare 'AReplayedGraph*' '*'; do
  data "$cpu" "$gpu" "yes\n    //room:gpu_tests SumGpuTest.$case"
  run features
  expect_equal "$status $output" "0 " "a graph that SumGpuTest.$case captures"
done
data 'yes\n    //room:shell_test' '– (no numbers there)' "$cpu"
run features
expect_equal "$status $output" "0 " "a test that is no gtest, and a graph of what only the CPU has"

finish
