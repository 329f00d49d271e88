#include "reprise/runner/speculation/tree_tokens.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/testing/speculation_cases.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

// A plain row, then the tree of the header's picture, then a padded row.
class ThreeRows : public ::testing::Test {
 protected:
  ThreeRows() {
    StepArrays& arrays = args_.arrays;
    arrays.query_start_loc = query_start_loc_;
    arrays.context_lens = context_lens_;
    arrays.table_row = table_row_;
    arrays.first_verified = first_verified_;
    arrays.sample_offset = sample_offset_;
    arrays.positions = positions_;
    arrays.parents = parents_;
    arrays.tail_len = tail_len_;
    arrays.tail_mask = tail_mask_;
    arrays.max_rows = 3;
    arrays.max_tokens = 8;
    args_.slots.position_delta = position_delta_;
    args_.slots.num_slots = 2;
    args_.num_rows = 3;
  }

  int32_t query_start_loc_[4] = {0, 1, 6, 6};
  int32_t context_lens_[3] = {4, 10, 0};
  int32_t table_row_[3] = {0, 1, 0};
  int32_t first_verified_[3] = {-1, 3, -1};
  int32_t sample_offset_[7] = {0, 4, 0, 0, 1, 2, 3};  // as refill leaves them
  int32_t positions_[8] = {4, 10, 11, 12, 13, 14, 0, 0};
  int32_t model_positions_[16] = {};
  int32_t parents_[8] = {-9, -1, 0, 0, 1, 2, -9, -9};
  int32_t tail_len_[3] = {-9, -9, -9};
  uint64_t tail_mask_[8] = {};
  int32_t position_delta_[2] = {100, 7};
  TreeTokensArgs args_;
};

TEST_F(ThreeRows, ATreeHasThePositionsMasksAndNumbersOfItsNodes) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    ASSERT_EQ(CheckTreeTokens(args_), absl::OkStatus());
    TreeTokensOnHost(args_);
    EXPECT_THAT(tail_len_, ElementsAre(0, 5, 0));
    EXPECT_THAT(positions_, ElementsAre(4, 10, 11, 11, 12, 12, 0, 0));
    EXPECT_THAT(tail_mask_, ElementsAre(0, 0b1, 0b11, 0b101, 0b1011, 0b10101, 0, 0));
    // The row's last node has the row's logits, those before it have rows 3 to 6.
    EXPECT_THAT(sample_offset_, ElementsAre(0, 2, 0, 0, 1, 1, 2));
  }
}

TEST_F(ThreeRows, AChainStaysWhatRefillMadeOfIt) {
  for (int i = 0; i < 5; ++i) parents_[1 + i] = i - 1;
  TreeTokensOnHost(args_);
  EXPECT_THAT(positions_, ElementsAre(4, 10, 11, 12, 13, 14, 0, 0));
  EXPECT_THAT(sample_offset_, ElementsAre(0, 4, 0, 0, 1, 2, 3));
  EXPECT_THAT(tail_mask_, ElementsAre(0, 1, 3, 7, 15, 31, 0, 0));
}

TEST_F(ThreeRows, WhatTheModelSeesIsThePositionAndTheSlotsDelta) {
  args_.arrays.num_position_dims = 2;
  args_.arrays.model_positions = model_positions_;
  TreeTokensOnHost(args_);
  EXPECT_THAT(model_positions_,
              ElementsAre(0, 17, 18, 18, 19, 19, 0, 0, 0, 17, 18, 18, 19, 19, 0, 0));
}

TEST_F(ThreeRows, BadInputIsRefusedWithNamesAndValues) {
  const auto refusal = [&] { return std::string(CheckTreeTokens(args_).message()); };
  args_.num_rows = 4;
  EXPECT_EQ(refusal(), "num_rows: expected at most 3, got 4");
  args_.num_rows = -1;
  EXPECT_EQ(refusal(), "num_rows: expected at least 0, got -1");
  args_.num_rows = 3;
  args_.arrays.parents = nullptr;
  EXPECT_EQ(refusal(), "arrays.parents: expected an array, got none");
  args_.arrays.parents = parents_;
  args_.arrays.num_position_dims = 3;
  EXPECT_EQ(refusal(), "arrays.model_positions: expected an array, got none");
  args_.num_rows = 0;
  EXPECT_EQ(refusal(), "");
}

// By walking from each node to the first.
void ByDefinition(const TreeTokensArgs& args) {
  const StepArrays& arrays = args.arrays;
  for (int r = 0; r < args.num_rows; ++r) {
    const int first = arrays.query_start_loc[r];
    const int count = arrays.first_verified[r] < 0 ? 0 : arrays.query_start_loc[r + 1] - first;
    arrays.tail_len[r] = count;
    for (int node = 0; node < count; ++node) {
      uint64_t mask = 0;
      int num_seen = 0;
      for (int at = node; at != -1; at = arrays.parents[first + at]) {
        mask |= uint64_t{1} << at;
        ++num_seen;
      }
      arrays.tail_mask[first + node] = mask;
      arrays.positions[first + node] = arrays.context_lens[r] + num_seen - 1;
      const int logits = node == count - 1 ? r : arrays.first_verified[r] + node;
      arrays.sample_offset[logits] = num_seen - 1;
    }
  }
}

TEST(TreeTokensTest, FollowsTheDefinition) {
  std::mt19937 random(1);
  int num_forks = 0;
  for (int i = 0; i < 400; ++i) {
    const SpeculationShape shape = DrawTreeShape(random);
    const auto carve = [&](ArrayCarver& carver) { return CarveTreeTokens(shape, carver); };
    BuilderMemory<TreeTokensArgs> memory(carve);
    BuilderMemory<TreeTokensArgs> expected(carve);
    DrawTreeTokens(random, shape, memory.args());
    std::copy_n(memory.base(), memory.num_bytes(), expected.base());
    ASSERT_EQ(CheckTreeTokens(memory.args()), absl::OkStatus());
    TreeTokensOnHost(memory.args());
    ByDefinition(expected.args());
    ASSERT_EQ(memory.FirstDifference(expected.base()), "") << "case " << i << ": " << shape;
    const StepArrays& arrays = memory.args().arrays;
    for (int r = 0; r < shape.num_rows; ++r) {
      for (int n = 2; n < arrays.tail_len[r]; ++n) {
        num_forks += arrays.parents[arrays.query_start_loc[r] + n] < n - 1;
      }
    }
  }
  EXPECT_GT(num_forks, 1000);
}

}  // namespace
}  // namespace reprise
