#include "reprise/cache/ops/kv_canary.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/ops/copy_blocks.h"
#include "reprise/cache/storage/block_store.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/cache/storage/kv_layout.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor Ints(const std::vector<int>& values) { return at::tensor(values, at::kInt); }
at::Tensor Slots(const std::vector<int64_t>& slots) { return at::tensor(slots, at::kLong); }

// 6 blocks of 2 tokens. Sequence 7 has keys 0..2 in blocks 4 and 1, sequence 8 has keys 0..3 in
// blocks 2 and 5.
class KvCanaryTest : public testing::Test {
 protected:
  KvCanaryTest() : canary_(*KvCanary::Create({.num_blocks = 6, .block_size = 2})) {
    EXPECT_TRUE(canary_
                    .Mark(Slots({8, 9, 2, 4, 5, 10, 11, -1, 12}),
                          Ints({7, 7, 7, 8, 8, 8, 8, 99, 99}), Ints({0, 1, 2, 0, 1, 2, 3, 4, 5}))
                    .ok());
    rows_.block_table = Ints({4, 1, 0, 2, 5, -1}).view({2, 3});
    rows_.seq_lens = Ints({3, 4});
    rows_.sequences = Ints({7, 8});
  }

  KvCanaryReport Check() {
    EXPECT_TRUE(canary_.Check(rows_).ok());
    const KvCanaryReport report = canary_.report();
    EXPECT_TRUE(canary_.Reset().ok());
    return report;
  }

  KvCanary canary_;
  KvCanaryRows rows_;
};

TEST_F(KvCanaryTest, ReportsNoFaultForCorrectKeys) {
  EXPECT_EQ(Check().num_wrong, 0);
  rows_.seq_lens = Ints({0, 2});  // padding reads nothing
  rows_.sequences = Ints({-1, 8});
  EXPECT_EQ(Check().num_wrong, 0);
}

TEST_F(KvCanaryTest, ReportsExpectedAndFoundKeys) {
  ASSERT_TRUE(canary_.Mark(Slots({9}), Ints({8}), Ints({6})).ok());  // a block allocated twice
  const KvCanaryReport report = Check();
  EXPECT_EQ(report.num_wrong, 1);
  EXPECT_THAT(report.first,
              ElementsAre(KvCanaryFault{
                  .row = 0, .block = 4, .offset = 1, .expected = {7, 1}, .found = {8, 6}}));
  std::ostringstream text;
  text << report;
  EXPECT_THAT(text.str(), HasSubstr("row 0, block 4 offset 1: expected key 1 of sequence 7, found "
                                    "key 6 of sequence 8"));
  EXPECT_THAT(canary_.report().first, IsEmpty());  // cleared
}

TEST_F(KvCanaryTest, UnwrittenKeysAndMissingColumnsAreFaults) {
  // One key was never written; one is in column 2, whose block is -1.
  rows_.seq_lens = Ints({4, 5});
  KvCanaryReport report = Check();
  ASSERT_EQ(report.num_wrong, 2);
  EXPECT_EQ(report.first[0].found, KvMark{});
  EXPECT_EQ(report.first[0].block, 1);
  EXPECT_EQ(report.first[1].block, -1);
  EXPECT_EQ(report.first[1].expected, (KvMark{8, 4}));
  rows_.seq_lens = Ints({3, 9});  // beyond the table's width
  EXPECT_EQ(Check().num_wrong, 5);
  rows_.seq_lens = Ints({3, 4});
  rows_.table_row = Ints({0, 2});
  EXPECT_EQ(Check().num_wrong, 4);
}

TEST_F(KvCanaryTest, ChecksOnlyThePositionOfSharedKeys) {
  // Sequence 9 was forked from 7 at 2 keys: it reads block 4, and writes its key 2 to block 3.
  rows_.block_table = Ints({4, 3}).view({1, 2});
  rows_.seq_lens = Ints({3});
  rows_.sequences = Ints({9});
  ASSERT_TRUE(canary_.Mark(Slots({6}), Ints({9}), Ints({2})).ok());
  EXPECT_EQ(Check().num_wrong, 2);
  rows_.shared_lens = Ints({2});
  EXPECT_EQ(Check().num_wrong, 0);
  rows_.block_table = Ints({1, 3}).view({1, 2});  // their keys have other positions
  EXPECT_EQ(Check().num_wrong, 2);
}

TEST_F(KvCanaryTest, ChecksRowsWithKeyStartAndFirstKeys) {
  // One row has only keys 2 and 3 of sequence 8; in the other, the first block has left the window.
  rows_.block_table = Ints({0, 1, 2, 5}).view({2, 2});
  rows_.table_row = Ints({1, 0});
  rows_.key_start = Ints({2, 0});
  rows_.seq_lens = Ints({2, 3});
  rows_.sequences = Ints({8, 7});
  EXPECT_EQ(Check().num_wrong, 2);  // the null block has no keys
  rows_.first_keys = Ints({0, 2});
  EXPECT_EQ(Check().num_wrong, 0);
}

TEST_F(KvCanaryTest, CountsAllFaultsButKeepsTheFirst) {
  rows_.sequences = Ints({1, 1});
  rows_.seq_lens = Ints({6, 4});
  rows_.block_table = Ints({2, 2, 2, 2, 2, 2}).view({2, 3});
  EXPECT_EQ(Check().num_wrong, 10);
  rows_.block_table = at::zeros({2, 30}, at::kInt);
  rows_.seq_lens = Ints({30, 30});
  const KvCanaryReport report = Check();
  EXPECT_EQ(report.num_wrong, 60);
  EXPECT_EQ(report.first.size(), kMaxCanaryFaults);
}

TEST_F(KvCanaryTest, MarksAreCopiedWithTheirBlocks) {
  KvCache cache = *KvCache::Create(
      *KvLayout::Create(
          {.num_blocks = 6, .block_size = 2, .num_kv_heads = 1, .head_dim_qk = 4, .head_dim_v = 4}),
      at::kCPU);
  const BlockStore store = *BlockStore::Over(cache, {.with = {canary_.marks()}});
  ASSERT_TRUE(CopyBlocks(store, store, {{{1, 3}}}).ok());  // copy-on-write of the last block of 7
  rows_.block_table = Ints({4, 3, 0, 2, 5, -1}).view({2, 3});
  EXPECT_EQ(Check().num_wrong, 0);
}

TEST_F(KvCanaryTest, RejectsInvalidArguments) {
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(KvCanary::Create({.num_blocks = 1}).status()), HasSubstr("block_size"));
  EXPECT_THAT(message(canary_.Mark(Slots({1, 2}), Ints({1}), Ints({1, 2}))),
              HasSubstr("sequences must be [>= num_tokens] int32"));
  KvCanaryRows rows = rows_;
  rows.sequences = Ints({7});
  EXPECT_THAT(message(canary_.Check(rows)), HasSubstr("sequences"));
  rows = rows_;
  rows.shared_lens = Slots({1, 2});
  EXPECT_THAT(message(canary_.Check(rows)), HasSubstr("shared_lens"));
  rows = rows_;
  rows.block_table = Ints({1, 2});
  EXPECT_THAT(message(canary_.Check(rows)), HasSubstr("block_table"));
}

}  // namespace
}  // namespace reprise
