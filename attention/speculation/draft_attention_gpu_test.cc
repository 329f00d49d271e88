// Attention on a GPU through the builders of speculative and context-parallel batches, each made on
// the device, and over a shared prefix that is found there and read once for several rows.

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "attention/cuda/attention_cuda.h"
#include "attention/merge/common_prefix.h"
#include "attention/merge/merge_states.h"
#include "attention/metadata/chain_batch.h"
#include "attention/speculation/draft_steps.h"
#include "attention/speculation/tree_batch.h"
#include "attention/testing/draft_attention.h"
#include "attention/testing/gpu_memory.h"
#include "attention/work_map/work_map_build.h"
#include "base/testing/device_array.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

cudaStream_t Stream() { return c10::cuda::getCurrentCUDAStream(); }

absl::Status AttendOnGpu(const AttentionParams& layer, const PagedBatch& batch, const at::Tensor& q,
                         const KvLayer& kv, at::Tensor& out, at::Tensor& lse) {
  GpuWorkMap work(
      {.dtype = DType::kFloat32,
       .num_q_heads = layer.num_q_heads,
       .num_kv_heads = layer.num_kv_heads,
       .head_dim_qk = layer.head_dim_qk,
       .head_dim_v = layer.head_dim_v,
       .max_rows = batch.num_rows,
       .max_tokens = batch.num_tokens,
       .max_query_len = std::max(1, batch.max_query_len),
       .max_seq_len = batch.max_seq_len,
       .num_sms = 7,
       .shared_prefix = batch.common_prefix_len ? SharedPrefix::kTaken : SharedPrefix::kIgnored});
  const absl::Status built = LaunchWorkMap(batch, WindowOf(layer), work.map(), Stream());
  if (!built.ok()) return built;
  return PagedAttentionCuda(layer, batch, work.map(), q, kv, out, &lse);
}

DraftAttentionDevice Gpu() {
  const auto launch = [](auto function) {
    return [function](const auto& args) { CheckLaunch(function(args, Stream())); };
  };
  return {.torch = at::kCUDA,
          .chain = launch(LaunchChainBatch),
          .tree = launch(LaunchTreeBatch),
          .draft_level = launch(LaunchDraftLevel),
          .common_prefix = launch(LaunchCommonPrefix),
          .merge = launch(LaunchMergeStates),
          .attend = AttendOnGpu};
}

using Suite = std::string (*)(const DraftAttentionDevice&, uint64_t);

class DraftAttentionGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  void RunSeeds(Suite suite) {
    for (uint64_t seed = 100; seed < 130; ++seed) {
      ASSERT_EQ(suite(Gpu(), seed), "") << "seed " << seed;
    }
  }
};

TEST_F(DraftAttentionGpuTest, ChainsAttendAsTheDefinitionSays) { RunSeeds(AttendThroughChain); }

TEST_F(DraftAttentionGpuTest, TreesAttendAsTheDefinitionSays) { RunSeeds(AttendThroughTree); }

TEST_F(DraftAttentionGpuTest, LevelsOfTreesAttendAsTheDefinitionSays) {
  RunSeeds(AttendThroughDraftLevels);
}

TEST_F(DraftAttentionGpuTest, RanksTogetherAttendAsTheDefinitionSays) {
  RunSeeds(AttendThroughRanks);
}

TEST_F(DraftAttentionGpuTest, RowsWithACommonPrefixAttendAsTheDefinitionSays) {
  RunSeeds(AttendThroughSharedPrefix);
}

}  // namespace
}  // namespace reprise
