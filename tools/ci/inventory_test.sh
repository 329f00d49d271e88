#!/bin/bash
# Tests inventory.sh on a small project: each kind of line, and each kind of loss.
set -uo pipefail
source tools/setup/testing.sh
needs git

export GIT_CONFIG_NOSYSTEM=1 HOME=$work
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
project=$work/project
mkdir -p "$project"/{tools/ci,tools/install,room/testing,examples/decode,docs}
cp -L tools/ci/*.py tools/ci/inventory.sh "$project/tools/ci/"
git -C "$project" init -q

cat >"$project/tools/install/public_targets.bzl" <<'END'
PUBLIC_TARGETS = [
    "//room:sum",
]
END
cat >"$project/room/BUILD" <<'END'
reprise_cc_library(name = "sum")
reprise_cc_library(name = "hidden")
reprise_cc_test(name = "sum_test", srcs = ["sum_test.cc"])
sh_test(name = "shell_test", srcs = ["shell_test.sh"])
END
cat >"$project/room/sum.h" <<'END'
// Sums of numbers.
#ifndef ROOM_SUM_H_
#define ROOM_SUM_H_
#define REPRISE_TWICE(x) ((x) * 2)
namespace reprise {
class Forward;
inline constexpr int kMaxTerms = 8;
using Term = std::pair<int, int>;
enum class Rounding : int8_t {
  kUp = 1,  // towards more
  kDown,
};
struct alignas(16) SumOptions {
  int max_terms = 8;
  std::vector<std::pair<int, int>> weights;
  Rounding rounding = Rounding::kUp;
  bool has_terms() const { return max_terms > 0; }
};
struct PlainOptions {
  int limit = 3;
};
class Sum {
 public:
  struct Part {
    absl::Span<const int> terms;
  };
  explicit Sum(const SumOptions& options) : options_(options) {}
  ~Sum();
  static absl::StatusOr<Sum> Create(const SumOptions& options = {});
  template <typename T>
  T Total(T first) const;
  bool operator==(const Sum&) const = default;

 private:
  int Hidden();
  SumOptions options_;
};
int Add(int a, int b);
}
#endif
END
echo 'struct Hidden {};' >"$project/room/hidden.h"
cat >"$project/room/sum.cc" <<'END'
absl::Status Check(int n, const std::string& name) {
  if (n < 0) return absl::InvalidArgumentError(absl::StrCat("--", name, " must be at least 0: "
                                                            "got ", n));
  if (n > 9) return absl::OutOfRangeError("n (of a sum) must be at most 9");
  if (n == 5) return absl::InternalError(message);
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_terms", n, 1));
  return Refused("weights", "as many as terms", n);
}
END
cat >"$project/room/sum_test.cc" <<'END'
TEST(SumTest, AddsTwoNumbers) { absl::NotFoundError("a message of a test"); }
TYPED_TEST(TypedTest, AddsAll) {}
INSTANTIATE_TEST_SUITE_P(Cpu, Suite, testing::Values(1));
// TEST(SumTest, IsACommentOnly) {}
END
echo 'TEST_P(Suite, ServesEveryDevice) {}' >"$project/room/testing/suite.cc"
cat >"$project/examples/decode/flags.cc" <<'END'
void Flags::AddAll() {
  AddNumber("top_k", arguments_.top_k, "sample among the likeliest tokens; "
            "0: all");
  Add("stop", "TEXT", "a text that ends with \"this\" has ended",
      [](const std::string&) { return true; });
  if (name == "prompt") Keep("model");
}
END
cat >"$project/docs/features.txt" <<'END'
== A. Sums

A1 sums of numbers
  CPU: yes
    //room:sum_test SumTest.AddsTwoNumbers
  GPU: not built
  graph: – (nothing to capture)
END
commit() { git -C "$project" add -A && git -C "$project" commit -q -m "$1"; }
inventory() { "$project/tools/ci/inventory.sh" "$@"; }
commit old

run inventory
expect_equal "$status $output" '0 alias Term
argument max_terms
argument weights
class Sum
constant kMaxTerms
enum Rounding
error InvalidArgument: --{} must be at least 0: got {}
error OutOfRange: n (of a sum) must be at most 9
error check: weights | as many as terms
feature A1 CPU: yes
feature A1: sums of numbers
field PlainOptions::limit
field Sum::Part::terms
field SumOptions::max_terms
field SumOptions::rounding
field SumOptions::weights
flag --stop: a text that ends with \"this\" has ended
flag --top_k: sample among the likeliest tokens; 0: all
function Add
instance Cpu/Suite
macro REPRISE_TWICE
method Sum::Create
method Sum::Total
method SumOptions::has_terms
option PlainOptions::limit = 3
option SumOptions::max_terms = 8
option SumOptions::rounding = Rounding::kUp
option SumOptions::weights = {}
script //room:shell_test
struct PlainOptions
struct Sum::Part
struct SumOptions
test Suite.ServesEveryDevice
test SumTest.AddsTwoNumbers
test TypedTest.AddsAll
value Rounding::kDown
value Rounding::kUp' "every kind of line"
here=$output
run inventory HEAD
expect_equal "$output" "$here" "a commit"

# ---- What is lost.

# lost FILE SED_SCRIPT EXPECTED WHAT: changes a file of the working tree, and expects these lines to be lost.
lost() {
  sed -i "$2" "$project/$1"
  run inventory --lost HEAD
  expect_equal "$status $output" "1 $3" "$4"
  git -C "$project" checkout -q -- .
}

run inventory --lost HEAD
expect_equal "$status $output" "0 " "no change"
lost examples/decode/flags.cc '/stop/,/true/d' 'flag --stop: a text that ends with \"this\" has ended' "a flag"
lost examples/decode/flags.cc 's/0: all/0: none/' 'flag --top_k: sample among the likeliest tokens; 0: all' "a flag's help"
lost room/sum.h 's/max_terms = 8/max_terms = 9/' 'option SumOptions::max_terms = 8' "a changed default"
lost room/sum.h '/limit = 3/d' 'field PlainOptions::limit
option PlainOptions::limit = 3' "an option"
lost room/sum_test.cc '/AddsTwoNumbers/d' 'test SumTest.AddsTwoNumbers' "a test case"
lost room/sum_test.cc '/INSTANTIATE/d' 'instance Cpu/Suite' "an instance"
lost room/BUILD '/shell_test/d' 'script //room:shell_test' "a script"
lost room/sum.cc '/n > 9/d' 'error OutOfRange: n (of a sum) must be at most 9' "a message"
lost room/sum.cc '/CheckAtLeast/d' 'argument max_terms' "a checked argument"
lost room/sum.h '/kDown/d' 'value Rounding::kDown' "an enumerator"
lost room/sum.h 's/^ public:/ private:/' 'field Sum::Part::terms
method Sum::Create
method Sum::Total
struct Sum::Part' "members that become private"
lost docs/features.txt 's/CPU: yes/CPU: not built/' 'feature A1 CPU: yes' "a claim"
lost tools/install/public_targets.bzl 's/sum/hidden/' 'alias Term
class Sum
constant kMaxTerms
enum Rounding
field PlainOptions::limit
field Sum::Part::terms
field SumOptions::max_terms
field SumOptions::rounding
field SumOptions::weights
function Add
macro REPRISE_TWICE
method Sum::Create
method Sum::Total
method SumOptions::has_terms
struct PlainOptions
struct Sum::Part
struct SumOptions
value Rounding::kDown
value Rounding::kUp' "a header that is no longer public"

git -C "$project" mv room/sum.cc examples/decode/sum.cc
commit "moved"
run inventory --lost HEAD~1 HEAD
expect_equal "$status $output" "0 " "moved code"
sed -i '/kDown/d' "$project/room/sum.h"
commit "new"
run inventory --lost HEAD~2 HEAD
expect_equal "$status $output" "1 value Rounding::kDown" "two commits"
run inventory --lost HEAD HEAD~2
expect_equal "$status $output" "0 " "a line that is new"

run inventory --lost no_such_commit
expect_equal "$status $output" "2 inventory: REV must be a commit: got no_such_commit" "no such commit"
run inventory --found HEAD
expect_status 2 "an unknown flag"

finish
