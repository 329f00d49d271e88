// Attention on the CPU through the builders of speculative and context-parallel batches, and over a
// shared prefix.

#include "attention/testing/draft_attention.h"

#include <cstdint>

#include "attention/attention.h"
#include "attention/merge/common_prefix.h"
#include "attention/merge/merge_states.h"
#include "attention/metadata/chain_batch.h"
#include "attention/speculation/draft_steps.h"
#include "attention/speculation/tree_batch.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

DraftAttentionDevice Cpu() {
  return {.torch = at::kCPU,
          .chain = ChainBatchOnHost,
          .tree = TreeBatchOnHost,
          .draft_level = DraftLevelOnHost,
          .common_prefix = [](const CommonPrefixArgs& args) { CommonPrefixOnHost(args); },
          .merge = [](const MergeStatesArgs& args) { ASSERT_TRUE(MergeStates(args).ok()); },
          .attend =
              [](const AttentionParams& layer, const PagedBatch& batch, const at::Tensor& q,
                 const KvLayer& kv, at::Tensor& out, at::Tensor& lse) {
                return PagedAttention(layer, batch, WorkMap(), q, kv, out, &lse);
              }};
}

using Suite = std::string (*)(const DraftAttentionDevice&, uint64_t);

void RunSeeds(Suite suite) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    ASSERT_EQ(suite(Cpu(), seed), "") << "seed " << seed;
  }
}

TEST(DraftAttentionTest, ChainsAttendAsTheDefinitionSays) { RunSeeds(AttendThroughChain); }

TEST(DraftAttentionTest, TreesAttendAsTheDefinitionSays) { RunSeeds(AttendThroughTree); }

TEST(DraftAttentionTest, LevelsOfTreesAttendAsTheDefinitionSays) {
  RunSeeds(AttendThroughDraftLevels);
}

TEST(DraftAttentionTest, RanksTogetherAttendAsTheDefinitionSays) { RunSeeds(AttendThroughRanks); }

TEST(DraftAttentionTest, RowsWithACommonPrefixAttendAsTheDefinitionSays) {
  RunSeeds(AttendThroughSharedPrefix);
}

}  // namespace
}  // namespace reprise
