// Tests attention on a GPU over the batches of the speculative, chunked, cross and context-parallel
// builders, which run on the device, and over a shared prefix, which is found on the device and
// read once for several rows. Builders, tile schedule and attention run eagerly, then in one
// captured graph that is replayed with other contents.

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "reprise/attention/cuda/attention_cuda.h"
#include "reprise/attention/merge/common_prefix.h"
#include "reprise/attention/merge/merge_states.h"
#include "reprise/attention/metadata/batch_gather.h"
#include "reprise/attention/metadata/cross_batch.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/speculation/draft_rows.h"
#include "reprise/attention/speculation/tree_batch.h"
#include "reprise/attention/testing/draft_attention.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/testing/device_array.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/cache/tables/convert_tables.h"

namespace reprise {
namespace {

cudaStream_t Stream() { return c10::cuda::getCurrentCUDAStream(); }

// Returns a tile schedule for the batch, and the attention that uses it. The schedule limits the KV
// splits of a row if rows may be long and no prefix is shared.
template <typename Batch, typename Run>
AttendPlan PlanFor(const AttentionParams& layer, const Batch& batch, const at::Tensor& q,
                   SharedPrefix shared_prefix, const Run& run) {
  const bool is_bounded = shared_prefix == SharedPrefix::kIgnored && batch.max_seq_len > 1000;
  const auto work = std::make_shared<GpuTileSchedule>(TileScheduleOptions{
      .dtype = *FromScalarType(q.scalar_type()),
      .num_q_heads = layer.num_q_heads,
      .num_kv_heads = layer.num_kv_heads,
      .head_dim_qk = layer.head_dim_qk,
      .head_dim_v = layer.head_dim_v,
      .max_rows = batch.num_rows,
      .max_tokens = batch.num_tokens,
      .max_query_len = std::max(1, batch.max_query_len),
      .max_seq_len = batch.max_seq_len,
      .device = {.num_sms = 7},
      .mode = is_bounded ? TileScheduleMode::kDeterministic : TileScheduleMode::kBalanced,
      .max_splits = 2 + batch.num_tokens % 4,
      .shared_prefix = shared_prefix});
  return {.run = [=]() -> absl::Status {
            const absl::StatusOr<BatchSchedule> built =
                LaunchTileSchedule(batch, WindowOf(layer), work->schedule(), Stream());
            return built.ok() ? run(*built) : built.status();
          },
          .poison = [work] { work->Poison(); }};
}

AttendPlan PlanOnGpu(const AttentionParams& layer, const PagedBatch& batch, const at::Tensor& q,
                     const KvLayer& kv, at::Tensor& out, at::Tensor& lse) {
  const SharedPrefix shared_prefix =
      batch.common_prefix_len ? SharedPrefix::kTaken : SharedPrefix::kIgnored;
  return PlanFor(layer, batch, q, shared_prefix, [=, &out, &lse](const BatchSchedule& built) {
    return PagedAttentionCuda(layer, batch, built, q, kv, {out, &lse});
  });
}

AttendPlan PlanRaggedOnGpu(const AttentionParams& layer, const RaggedBatch& batch,
                           const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           at::Tensor& out, at::Tensor& lse) {
  return PlanFor(layer, batch, q, SharedPrefix::kIgnored,
                 [=, &out, &lse](const BatchSchedule& built) {
                   return RaggedAttentionCuda(layer, batch, built, q, {k, v}, {out, &lse});
                 });
}

// Captures the step as a graph.
absl::StatusOr<std::function<void()>> CaptureOnGpu(const std::function<absl::Status()>& step) {
  CheckCuda(cudaDeviceSynchronize());
  absl::Status status;
  const auto graph = std::make_shared<CapturedWork>([&](cudaStream_t stream) {
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(stream, c10::cuda::current_device()));
    status = step();
  });
  if (!status.ok()) return status;
  return [graph] { graph->Replay(); };
}

DraftAttentionDevice Gpu() {
  const auto launch = [](auto function) {
    return [function](const auto& args) { CheckLaunch(function(args, Stream())); };
  };
  return {.torch = at::kCUDA,
          .tree = launch(LaunchTreeBatch),
          .draft_rows = launch(LaunchDraftRows),
          .local = launch(LaunchLocalVirtualBatch),
          .cross = launch(LaunchCrossBatch),
          .gather = launch(LaunchBatchGather),
          .convert = launch(LaunchConvertTables),
          .common_prefix = launch(LaunchCommonPrefix),
          .merge = launch(LaunchMergeStates),
          .plan = PlanOnGpu,
          .plan_ragged = PlanRaggedOnGpu,
          .capture = CaptureOnGpu};
}

constexpr DraftAttentionTypes kTypes[] = {{DType::kFloat32, DType::kFloat32},
                                          {DType::kBFloat16, DType::kBFloat16},
                                          {DType::kBFloat16, DType::kFp8E4M3}};

using Suite = std::string (*)(const DraftAttentionDevice&, const DraftAttentionTypes&, uint64_t);

class DraftAttentionGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  void RunSeeds(Suite suite, uint64_t num_seeds = 30) {
    for (const DraftAttentionTypes& types : kTypes) {
      for (uint64_t seed = 100; seed < 100 + num_seeds; ++seed) {
        ASSERT_EQ(suite(Gpu(), types, seed), "")
            << "seed " << seed << ", " << types.q << " over " << types.kv;
      }
    }
  }
};

TEST_F(DraftAttentionGpuTest, ChainsMatchTheDefinition) { RunSeeds(AttendThroughChain); }

TEST_F(DraftAttentionGpuTest, ChunksMatchTheDefinition) { RunSeeds(AttendThroughChunks); }

TEST_F(DraftAttentionGpuTest, CrossAttentionMatchesTheDefinition) { RunSeeds(AttendThroughCross); }

TEST_F(DraftAttentionGpuTest, TreesMatchTheDefinition) { RunSeeds(AttendThroughTree); }

TEST_F(DraftAttentionGpuTest, TreesOfMoreThan64NodesMatchTheDefinition) {
  RunSeeds(AttendThroughLargeTree, 6);
}

TEST_F(DraftAttentionGpuTest, TreeLevelsMatchTheDefinition) { RunSeeds(AttendThroughDraftLevels); }

TEST_F(DraftAttentionGpuTest, MergedRanksMatchTheDefinition) { RunSeeds(AttendThroughRanks); }

TEST_F(DraftAttentionGpuTest, MergedRankContextsAndNewTokensMatchTheDefinition) {
  RunSeeds(AttendThroughContextsOfRanks);
}

TEST_F(DraftAttentionGpuTest, SharedPrefixMatchesTheDefinition) {
  RunSeeds(AttendThroughSharedPrefix);
}

TEST_F(DraftAttentionGpuTest, SeparatePrefixMergedWithTheRestMatchesTheDefinition) {
  RunSeeds(AttendThroughPrefixApart);
}

TEST_F(DraftAttentionGpuTest, GatheredRowsMatchTheDefinition) { RunSeeds(AttendThroughGather); }

}  // namespace
}  // namespace reprise
