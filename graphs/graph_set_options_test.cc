#include "reprise/graphs/graph_set_options.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Mode = GraphSetOptions::Mode;

GraphSetOptions Options(Mode mode) {
  return {.mode = mode, .max_num_seqs = 16, .sizes = {1, 2, 4, 8, 16}, .max_seq_len = 1024};
}

TEST(DefaultGraphSizesTest, StepsAreDoublingThenEightThenSixteen) {
  EXPECT_THAT(DefaultGraphSizes(1), ElementsAre(1));
  EXPECT_THAT(DefaultGraphSizes(2), ElementsAre(1, 2));
  EXPECT_THAT(DefaultGraphSizes(3), ElementsAre(1, 2, 3));
  EXPECT_THAT(DefaultGraphSizes(8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(DefaultGraphSizes(13), ElementsAre(1, 2, 4, 8, 13));
  EXPECT_THAT(DefaultGraphSizes(33), ElementsAre(1, 2, 4, 8, 16, 24, 32, 33));

  const std::vector<int> sizes = DefaultGraphSizes(512);
  EXPECT_EQ(sizes.size(), 4u + 31 + 16);  // 1 2 4 8, 16..256 by 8, 272..512 by 16
  EXPECT_EQ(sizes.back(), 512);
  for (const int size : {256, 272, 288}) {
    EXPECT_TRUE(std::binary_search(sizes.begin(), sizes.end(), size)) << size;
  }
  EXPECT_FALSE(std::binary_search(sizes.begin(), sizes.end(), 264));
}

TEST(DefaultGraphSizesTest, EndAt512AtMost) {
  EXPECT_EQ(DefaultGraphSizes(513), DefaultGraphSizes(512));
  EXPECT_EQ(DefaultGraphSizes(std::numeric_limits<int>::max()), DefaultGraphSizes(512));
}

TEST(DefaultGraphSizesTest, AreAscendingAndEndAtTheMaximumForEveryMaximum) {
  for (int max_num_seqs = 1; max_num_seqs <= 600; ++max_num_seqs) {
    const std::vector<int> sizes = DefaultGraphSizes(max_num_seqs);
    EXPECT_EQ(sizes.front(), 1);
    EXPECT_EQ(sizes.back(), std::min(max_num_seqs, 512));
    EXPECT_TRUE(std::is_sorted(sizes.begin(), sizes.end(), std::less_equal<int>())) << max_num_seqs;
  }
}

TEST(DefaultGraphSizesDeathTest, DiesWithoutSequences) {
  EXPECT_DEATH(DefaultGraphSizes(0), "0 vs. 1");
}

TEST(DefaultMixedTokensTest, AreMultiplesOf64UpToTheMaximumOr512) {
  EXPECT_THAT(DefaultMixedTokens(1), ElementsAre(1));
  EXPECT_THAT(DefaultMixedTokens(64), ElementsAre(64));
  EXPECT_THAT(DefaultMixedTokens(65), ElementsAre(64, 65));
  EXPECT_THAT(DefaultMixedTokens(300), ElementsAre(64, 128, 192, 256, 300));
  EXPECT_THAT(DefaultMixedTokens(8192), ElementsAre(64, 128, 192, 256, 320, 384, 448, 512));
}

TEST(DefaultMixedSizesTest, AreFewAndEndAtTheMaximumOrAt512) {
  EXPECT_THAT(DefaultMixedSizes(1), ElementsAre(1));
  EXPECT_THAT(DefaultMixedSizes(16), ElementsAre(16));
  EXPECT_THAT(DefaultMixedSizes(17), ElementsAre(16, 17));
  EXPECT_THAT(DefaultMixedSizes(200), ElementsAre(16, 128, 200));
  EXPECT_THAT(DefaultMixedSizes(4096), ElementsAre(16, 128, 512));
}

TEST(GraphSetOptionsTest, FillsInMixedSizesOnlyWithMixedTokens) {
  GraphSetOptions options{.max_num_seqs = 20, .max_seq_len = 64};
  EXPECT_TRUE(CheckedOptions(options)->mixed_sizes.empty());
  options.mixed_tokens = {64};
  EXPECT_THAT(CheckedOptions(options)->mixed_sizes, ElementsAre(16, 20));
  options.mixed_sizes = {3};
  EXPECT_THAT(CheckedOptions(options)->mixed_sizes, ElementsAre(3));
}

TEST(GraphSetOptionsTest, FillsInSizesOnlyIfEmpty) {
  GraphSetOptions options{.max_num_seqs = 13, .max_seq_len = 64};
  EXPECT_THAT(CheckedOptions(options)->sizes, ElementsAre(1, 2, 4, 8, 13));
  options.sizes = {3, 7};
  EXPECT_THAT(CheckedOptions(options)->sizes, ElementsAre(3, 7));
}

TEST(GraphSetOptionsTest, AcceptsTheBounds) {
  GraphSetOptions options{.max_num_seqs = 1, .max_seq_len = 1};
  EXPECT_TRUE(CheckedOptions(options).ok());
  options = {.max_num_seqs = 2147483647, .sizes = {2147483647}, .max_seq_len = 2147483647};
  options.memory_budget_bytes = 0;
  EXPECT_TRUE(CheckedOptions(options).ok());
}

TEST(GraphSetOptionsTest, RejectsInvalidOptionsAndNamesTheField) {
  struct Case {
    std::string name;
    std::function<void(GraphSetOptions&)> spoil;
    std::string message;
  };
  const int max = std::numeric_limits<int>::max();
  const std::vector<Case> cases = {
      {"no seqs", [](auto& o) { o.max_num_seqs = 0; }, "max_num_seqs: expected at least 1, got 0"},
      {"negative seqs", [](auto& o) { o.max_num_seqs = -5; }, "max_num_seqs"},
      {"zero size",
       [](auto& o) {
         o.sizes = {0, 1};
       },
       "expected sizes[0] >= 1, got 0"},
      {"negative size", [](auto& o) { o.sizes = {-1}; }, "expected sizes[0] >= 1, got -1"},
      {"repeated size",
       [](auto& o) {
         o.sizes = {1, 2, 2};
       },
       "expected sizes[2] >= 3, got 2"},
      {"descending sizes",
       [](auto& o) {
         o.sizes = {4, 2};
       },
       "expected sizes[1] >= 5, got 2"},
      {"size past the buffers",
       [](auto& o) {
         o.sizes = {1, 17};
       },
       "sizes must not pass max_num_seqs: expected at most 16, got 17"},
      {"no query length", [](auto& o) { o.query_lens = {}; },
       "query_lens: expected at least 1, got 0"},
      {"empty query", [](auto& o) { o.query_lens = {0}; }, "expected query_lens[0] >= 1, got 0"},
      {"descending queries",
       [](auto& o) {
         o.query_lens = {5, 1};
       },
       "expected query_lens[1] >= 6, got 1"},
      {"query past the context",
       [](auto& o) {
         o.query_lens = {1, 1025};
       },
       "query_lens must not pass max_seq_len: expected at most 1024, got 1025"},
      {"no context", [](auto& o) { o.max_seq_len = 0; }, "max_seq_len: expected at least 1, got 0"},
      {"tokens beyond int",
       [max](auto& o) {
         o.max_num_seqs = max;
         o.sizes = {max};
         o.max_seq_len = max;
         o.query_lens = {max};
       },
       "expected at most 2147483647 tokens, got 4611686014132420609"},
      {"zero mixed tokens",
       [](auto& o) {
         o.mixed_tokens = {0, 64};
       },
       "expected mixed_tokens[0] >= 1, got 0"},
      {"repeated mixed tokens",
       [](auto& o) {
         o.mixed_tokens = {64, 64};
       },
       "expected mixed_tokens[1] >= 65, got 64"},
      {"mixed sizes past the buffers",
       [](auto& o) {
         o.mixed_tokens = {64};
         o.mixed_sizes = {8, 17};
       },
       "mixed_sizes must not pass max_num_seqs: expected at most 16, got 17"},
      {"mixed sizes alone", [](auto& o) { o.mixed_sizes = {8}; },
       "expected none without mixed_tokens"},
      {"no input", [](auto& o) { o.inputs = {}; }, "inputs: expected at least 1, got 0"},
      {"repeated input",
       [](auto& o) {
         o.inputs = {StepInput::kTokens, StepInput::kTokens};
       },
       "inputs must be distinct"},
      {"unknown input", [](auto& o) { o.inputs = {static_cast<StepInput>(7)}; }, "got 7"},
      {"negative budget", [](auto& o) { o.memory_budget_bytes = -1; },
       "memory_budget_bytes: expected at least 0, got -1"},
  };
  for (const Mode mode : {Mode::kOff, Mode::kEager, Mode::kLazy}) {
    for (const Case& test : cases) {
      GraphSetOptions options = Options(mode);
      test.spoil(options);
      const absl::Status status = CheckedOptions(options).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.name;
      EXPECT_THAT(std::string(status.message()), HasSubstr(test.message)) << test.name;
    }
  }
}

}  // namespace
}  // namespace reprise
