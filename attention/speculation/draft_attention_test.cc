// Tests attention on the CPU over the batches of the speculative, chunked, cross and
// context-parallel builders, and over a shared prefix. Each test runs once, and again with other
// contents in the same memory.

#include "reprise/attention/testing/draft_attention.h"

#include <cstdint>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/merge/common_prefix.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

DraftAttentionDevice Cpu() {
  return {
      .torch = at::kCPU,
      .tree = TreeBatchOnHost,
      .draft_rows = DraftRowsOnHost,
      .local =
          [](const LocalVirtualBatchArgs& args) {
            ASSERT_EQ(CheckLocalVirtualBatch(args), absl::OkStatus());
            LocalVirtualBatchOnHost(args);
          },
      .cross =
          [](const CrossBatchArgs& args) {
            ASSERT_EQ(CheckCrossBatch(args), absl::OkStatus());
            CrossBatchOnHost(args);
          },
      .gather =
          [](const BatchGatherArgs& args) {
            ASSERT_EQ(CheckBatchGather(args), absl::OkStatus());
            BatchGatherOnHost(args);
          },
      .convert =
          [](const ConvertTablesArgs& args) {
            ASSERT_EQ(CheckConvertTables(args), absl::OkStatus());
            ConvertTablesOnHost(args);
          },
      .common_prefix = [](const CommonPrefixArgs& args) { CommonPrefixOnHost(args); },
      .merge = [](const MergeStatesArgs& args) { ASSERT_TRUE(MergeStates(args).ok()); },
      .plan = [](const AttentionParams& layer, const PagedBatch& batch, const at::Tensor& q,
                 const KvLayer& kv, at::Tensor& out, at::Tensor& lse) -> AttendPlan {
        return {.run =
                    [=, &out, &lse] {
                      return PagedAttention(layer, batch, BatchSchedule(), q, kv, {out, &lse});
                    },
                .poison = {}};
      },
      .plan_ragged = [](const AttentionParams& layer, const RaggedBatch& batch, const at::Tensor& q,
                        const at::Tensor& k, const at::Tensor& v, at::Tensor& out,
                        at::Tensor& lse) -> AttendPlan {
        return {.run =
                    [=, &out, &lse] {
                      return RaggedAttention(layer, batch, BatchSchedule(), q, {k, v}, {out, &lse});
                    },
                .poison = {}};
      },
      .capture =
          [](const std::function<absl::Status()>& step) -> absl::StatusOr<std::function<void()>> {
        return [step] { ASSERT_EQ(step(), absl::OkStatus()); };
      }};
}

constexpr DraftAttentionTypes kTypes[] = {{DType::kFloat32, DType::kFloat32},
                                          {DType::kBFloat16, DType::kBFloat16},
                                          {DType::kBFloat16, DType::kFp8E4M3}};

using Suite = std::string (*)(const DraftAttentionDevice&, const DraftAttentionTypes&, uint64_t);

void RunSeeds(Suite suite, uint64_t num_seeds = 20) {
  for (const DraftAttentionTypes& types : kTypes) {
    for (uint64_t seed = 0; seed < num_seeds; ++seed) {
      ASSERT_EQ(suite(Cpu(), types, seed), "")
          << "seed " << seed << ", " << types.q << " over " << types.kv;
    }
  }
}

TEST(DraftAttentionTest, ChainsMatchTheDefinition) { RunSeeds(AttendThroughChain); }

TEST(DraftAttentionTest, ChunksMatchTheDefinition) { RunSeeds(AttendThroughChunks); }

TEST(DraftAttentionTest, CrossAttentionMatchesTheDefinition) { RunSeeds(AttendThroughCross); }

TEST(DraftAttentionTest, TreesMatchTheDefinition) { RunSeeds(AttendThroughTree); }

TEST(DraftAttentionTest, TreesOfMoreThan64NodesMatchTheDefinition) {
  RunSeeds(AttendThroughLargeTree, 4);
}

TEST(DraftAttentionTest, TreeLevelsMatchTheDefinition) { RunSeeds(AttendThroughDraftLevels); }

TEST(DraftAttentionTest, MergedRanksMatchTheDefinition) { RunSeeds(AttendThroughRanks); }

TEST(DraftAttentionTest, MergedRankContextsAndNewTokensMatchTheDefinition) {
  RunSeeds(AttendThroughContextsOfRanks);
}

TEST(DraftAttentionTest, SharedPrefixMatchesTheDefinition) { RunSeeds(AttendThroughSharedPrefix); }

TEST(DraftAttentionTest, SeparatePrefixMergedWithTheRestMatchesTheDefinition) {
  RunSeeds(AttendThroughPrefixApart);
}

TEST(DraftAttentionTest, GatheredRowsMatchTheDefinition) { RunSeeds(AttendThroughGather); }

}  // namespace
}  // namespace reprise
