#include "reprise/attention/speculation/tree_tokens.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/testing/random_cases.h"
#include "reprise/attention/testing/speculation/tree_cases.h"
#include "reprise/attention/testing/speculation/tree_reference.h"
#include "reprise/base/testing/builder_memory.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

// A row without drafts, the tree of the header, and a padded row.
class TreeTokensOfThreeRows : public ::testing::Test {
 protected:
  TreeTokensOfThreeRows() {
    args_.arrays = {.positions = positions_,
                    .slot_mapping = slot_mapping_,
                    .query_start_loc = query_start_loc_,
                    .seq_lens = seq_lens_,
                    .table_row = table_row_,
                    .tail_len = tail_len_,
                    .tail_mask = tail_mask_,
                    .row_faults = row_faults_};
    args_.parents.nodes = parents_;
    args_.first_verified = first_verified_;
    args_.sample_offset = sample_offset_;
    args_.num_rows = 3;
    args_.num_tokens = 8;
    args_.num_logits = 7;
  }

  int32_t query_start_loc_[4] = {0, 1, 6, 6};
  int32_t seq_lens_[3] = {5, 15, 0};
  int32_t table_row_[3] = {0, 1, 0};
  int32_t first_verified_[3] = {-1, 3, -1};
  int32_t sample_offset_[7] = {0, 4, 0, 0, 1, 2, 3};  // as written by refill
  int32_t positions_[8] = {4, 10, 11, 12, 13, 14, 0, 0};
  int64_t slot_mapping_[8] = {4, 10, 11, 12, 13, 14, -1, -1};
  int32_t model_positions_[16] = {};
  int32_t parents_[8] = {-9, -1, 0, 0, 1, 2, -9, -9};
  int32_t tail_len_[3] = {-9, -9, -9};
  uint64_t tail_mask_[8] = {};
  int32_t row_faults_[3] = {};
  int32_t position_delta_[2] = {100, 7};
  TreeTokensArgs args_;
};

TEST_F(TreeTokensOfThreeRows, WritesPositionsMasksAndSampleOffsets) {
  for (int repeat = 0; repeat < 2; ++repeat) {
    ASSERT_EQ(CheckTreeTokens(args_), absl::OkStatus());
    TreeTokensOnHost(args_);
    EXPECT_THAT(tail_len_, ElementsAre(0, 5, 0));
    EXPECT_THAT(positions_, ElementsAre(4, 10, 11, 11, 12, 12, 0, 0));
    EXPECT_THAT(tail_mask_, ElementsAre(0, 0b1, 0b11, 0b101, 0b1011, 0b10101, 0, 0));
    // The last node has the logits at the row's index, 1. The other nodes have rows 3 to 6.
    EXPECT_THAT(sample_offset_, ElementsAre(0, 2, 0, 0, 1, 1, 2));
  }
}

TEST_F(TreeTokensOfThreeRows, ChainDoesNotChange) {
  for (int i = 0; i < 5; ++i) parents_[1 + i] = i - 1;
  TreeTokensOnHost(args_);
  EXPECT_THAT(positions_, ElementsAre(4, 10, 11, 12, 13, 14, 0, 0));
  EXPECT_THAT(sample_offset_, ElementsAre(0, 4, 0, 0, 1, 2, 3));
  EXPECT_THAT(tail_mask_, ElementsAre(0, 1, 3, 7, 15, 31, 0, 0));
}

TEST_F(TreeTokensOfThreeRows, ModelPositionsIncludeTheSlotsDelta) {
  args_.model_positions = {
      .positions = model_positions_, .delta = position_delta_, .num_dims = 2, .stride = 8};
  TreeTokensOnHost(args_);
  EXPECT_THAT(model_positions_,
              ElementsAre(0, 17, 18, 18, 19, 19, 0, 0, 0, 17, 18, 18, 19, 19, 0, 0));
}

TEST_F(TreeTokensOfThreeRows, WithoutFirstVerifiedAllLiveRowsAreTrees) {
  args_.first_verified = nullptr;
  args_.sample_offset = nullptr;
  parents_[0] = -1;
  TreeTokensOnHost(args_);
  EXPECT_THAT(tail_len_, ElementsAre(1, 5, 0));
  EXPECT_THAT(tail_mask_, ElementsAre(0b1, 0b1, 0b11, 0b101, 0b1011, 0b10101, 0, 0));
}

TEST_F(TreeTokensOfThreeRows, CycleMakesTheRowAndItsTokensInert) {
  parents_[1 + 1] = 3;  // node 3 follows node 1
  TreeTokensOnHost(args_);
  EXPECT_THAT(row_faults_, ElementsAre(0, static_cast<int32_t>(RowFault::kTree), 0));
  EXPECT_THAT(seq_lens_, ElementsAre(5, 0, 0));
  EXPECT_THAT(tail_len_, ElementsAre(0, 0, 0));
  EXPECT_THAT(slot_mapping_, ElementsAre(4, -1, -1, -1, -1, -1, -1, -1));
  EXPECT_THAT(positions_, ElementsAre(4, 0, 0, 0, 0, 0, 0, 0));
}

TEST_F(TreeTokensOfThreeRows, MoreNodesThanAllowedMakeTheRowInert) {
  args_.max_nodes = 4;
  TreeTokensOnHost(args_);
  EXPECT_THAT(row_faults_, ElementsAre(0, static_cast<int32_t>(RowFault::kLength), 0));
  EXPECT_THAT(seq_lens_, ElementsAre(5, 0, 0));
}

TEST_F(TreeTokensOfThreeRows, RejectsInvalidArguments) {
  const auto refusal = [&] { return std::string(CheckTreeTokens(args_).message()); };
  args_.num_rows = -1;
  EXPECT_EQ(refusal(), "num_rows: expected at least 0, got -1");
  args_.num_rows = 3;
  args_.parents.nodes = nullptr;
  EXPECT_EQ(refusal(), "parents: expected an array, got none");
  args_.parents.nodes = parents_;
  args_.model_positions = {.positions = model_positions_, .num_dims = 2, .stride = 8};
  EXPECT_EQ(refusal(), "model_positions.delta: expected an array, got none");
  args_.num_rows = 0;
  EXPECT_EQ(refusal(), "");
}

// Two copies of a random batch: one for the operation, one for its definition.
struct Twins : DefinitionTwins<TreeTokensArgs> {
  Twins(const TreeShape& shape, Random& random, double hostility)
      : DefinitionTwins([&](ArrayCarver& carver) { return CarveTreeTokens(shape, carver); }) {
    DrawTreeTokens(random, shape, hostility, args());
  }
};

TEST(TreeTokensTest, MatchesTheDefinition) {
  int num_forks = 0;
  ForEachRandomShape(2000, DrawTreeShape, [&](Random& random, const TreeShape& shape) {
    Twins twins(shape, random, 0);
    const TreeTokensArgs& args = twins.args();
    ASSERT_EQ(CheckTreeTokens(args), absl::OkStatus());
    ASSERT_EQ(twins.Compare(TreeTokensOnHost, TreeTokensByDefinition), "");
    for (int r = 0; r < shape.num_rows; ++r) {
      const int32_t* parents = args.parents.row(r, args.arrays.query_start_loc[r]);
      for (int n = 2; n < args.arrays.tail_len[r]; ++n) num_forks += parents[n] < n - 1;
    }
  });
  EXPECT_GT(num_forks, 5000);
}

TEST(TreeTokensTest, InvalidValuesMakeRowsInertWithoutOtherEffects) {
  int num_faults = 0;
  const auto draw = [](Random& random) {
    TreeShape shape = DrawTreeShape(random);
    shape.has_faults = true;
    return shape;
  };
  ForEachRandomShape(3000, draw, [&](Random& random, const TreeShape& shape) {
    Twins twins(shape, random, 0.05);
    const BatchArrays& arrays = twins.args().arrays;
    std::fill_n(arrays.row_faults, shape.num_rows, 0);
    ASSERT_EQ(twins.Compare(TreeTokensOnHost, TreeTokensByDefinition), "");
    for (int r = 0; r < shape.num_rows; ++r) {
      num_faults += arrays.row_faults[r] != 0;
      ASSERT_TRUE(arrays.row_faults[r] == 0 || arrays.seq_lens[r] == 0);
    }
  });
  EXPECT_GT(num_faults, 500);
}

}  // namespace
}  // namespace reprise
