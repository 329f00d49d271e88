// Tests that kernels with a PDL prologue prefetch (attention/cuda/general/first_keys.cuh) use what
// the previous kernel writes to block tables, queries and keys, although they read the block table
// before that kernel has ended.

#include <ATen/core/Tensor.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/late_copy.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr int kHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kHeadDim = 128;
constexpr int kBlockSize = 16;
constexpr int kDelayUs = 30;

at::Tensor OnDevice(const std::vector<int32_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kInt)).to(at::kCUDA);
}

// Rows of `query_len` queries over random keys, with a tile schedule that is built once.
class Layer {
 public:
  Layer(int query_len, const std::vector<int32_t>& lens) {
    const int num_rows = static_cast<int>(lens.size());
    std::vector<int32_t> starts = {0};
    for (int r = 0; r < num_rows; ++r) starts.push_back(starts.back() + query_len);
    start_loc_ = OnDevice(starts);
    seq_lens_ = OnDevice(lens);
    const int longest = *std::max_element(lens.begin(), lens.end());
    const int max_blocks = (longest + kBlockSize - 1) / kBlockSize;
    num_blocks_ = num_rows * max_blocks;
    table = at::randperm(num_blocks_, at::TensorOptions(at::kCUDA).dtype(at::kInt));
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
    q = at::randn({starts.back(), kHeads, kHeadDim}, options);
    k = at::randn({num_blocks_, kBlockSize, kKvHeads, kHeadDim}, options);
    v_ = at::randn({num_blocks_, kBlockSize, kKvHeads, kHeadDim}, options);
    batch_ = {.query_start_loc = start_loc_.const_data_ptr<int32_t>(),
              .seq_lens = seq_lens_.const_data_ptr<int32_t>(),
              .block_table = table.const_data_ptr<int32_t>(),
              .block_table_stride = max_blocks,
              .num_rows = num_rows,
              .num_tokens = starts.back(),
              .max_query_len = query_len,
              .max_seq_len = longest,
              .num_tables = num_rows,
              .max_blocks = max_blocks};
    work_.emplace(TileScheduleOptions{.dtype = DType::kBFloat16,
                                      .num_q_heads = kHeads,
                                      .num_kv_heads = kKvHeads,
                                      .head_dim_qk = kHeadDim,
                                      .head_dim_v = kHeadDim,
                                      .max_rows = num_rows,
                                      .max_tokens = starts.back(),
                                      .max_query_len = query_len,
                                      .max_seq_len = longest});
    work_->Poison();
    EXPECT_TRUE(LaunchTileSchedule(batch_, WindowOf(layer_), work_->schedule(), Stream()).ok());
  }

  static cudaStream_t Stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

  // Enqueues attention over the rows.
  void Attend(at::Tensor& out) {
    const KvLayer kv = {.k = ViewOf(k),
                        .v = ViewOf(v_),
                        .dtype = DType::kBFloat16,
                        .num_blocks = num_blocks_,
                        .block_size = kBlockSize,
                        .num_kv_heads = kKvHeads,
                        .head_dim_qk = kHeadDim,
                        .head_dim_v = kHeadDim};
    const absl::Status status = PagedAttention(
        layer_, batch_, WorkOf(batch_, WindowOf(layer_), work_->schedule()), q, kv, {out});
    EXPECT_TRUE(status.ok()) << status;
  }

  at::Tensor table, q, k;

 private:
  static KvView ViewOf(const at::Tensor& tensor) {
    return {.data = tensor.data_ptr(),
            .block_stride = tensor.stride(0),
            .token_stride = tensor.stride(1),
            .head_stride = tensor.stride(2),
            .dim_chunk = kHeadDim};
  }

  AttentionParams layer_ = {.num_q_heads = kHeads,
                            .num_kv_heads = kKvHeads,
                            .head_dim_qk = kHeadDim,
                            .head_dim_v = kHeadDim};
  at::Tensor start_loc_, seq_lens_, v_;
  int num_blocks_ = 0;
  PagedBatch batch_;
  std::optional<GpuTileSchedule> work_;
};

class AttentionPrologueSmallGpuTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // Runs attention directly after a kernel that writes the contents of `memory`, a tensor of the
  // layer, late. Until then `memory` holds `before`. Expects the result with the final contents.
  static void CheckLateWrite(Layer& layer, const at::Tensor& memory, const at::Tensor& before) {
    at::Tensor expected = at::full_like(layer.q, NAN);
    layer.Attend(expected);
    ASSERT_FALSE(expected.isnan().any().item<bool>());
    const at::Tensor right = memory.clone();
    for (int run = 0; run < 5; ++run) {
      at::Tensor out = at::full_like(layer.q, NAN);
      memory.copy_(before);
      ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
      ASSERT_EQ(LaunchLateCopy(static_cast<int32_t*>(memory.mutable_data_ptr()),
                               static_cast<const int32_t*>(right.const_data_ptr()),
                               static_cast<int>(memory.nbytes() / 4), kDelayUs, Layer::Stream()),
                cudaSuccess);
      layer.Attend(out);
      ASSERT_TRUE(out.equal(expected)) << "run " << run;
    }
  }
};

// Rows in one, a few and many splits; short and long items; clusters of 2, 4, 6 and 8.
const std::vector<int32_t> kLens[] = {
    {5000},     {4000, 3000, 4001, 17},       {100}, {500, 33, 1}, {900, 1000},
    {760, 700}, std::vector<int32_t>(50, 600)};

TEST_P(AttentionPrologueSmallGpuTest, PreviousKernelMayChangeBlockTablesUntilItEnds) {
  for (const std::vector<int32_t>& lens : kLens) {
    Layer layer(std::min(GetParam(), lens.back()), lens);
    SCOPED_TRACE(lens.size());
    CheckLateWrite(layer, layer.table, at::flip(layer.table, {0}));
    CheckLateWrite(layer, layer.table, at::full_like(layer.table, 0x7fffffff));
    // Only the last entry changes.
    at::Tensor but_last = layer.table.clone();
    but_last[-1] = but_last[0];
    CheckLateWrite(layer, layer.table, but_last);
  }
}

TEST_P(AttentionPrologueSmallGpuTest, PreviousKernelMayChangeQueriesAndKeysUntilItEnds) {
  for (const std::vector<int32_t>& lens : kLens) {
    Layer layer(std::min(GetParam(), lens.back()), lens);
    SCOPED_TRACE(lens.size());
    CheckLateWrite(layer, layer.q, at::full_like(layer.q, NAN));
    CheckLateWrite(layer, layer.k, at::full_like(layer.k, NAN));
  }
}

// Maximum number of queries per row: 1 uses the decode tile, 6 the tile for verification of drafts.
INSTANTIATE_TEST_SUITE_P(QueryLens, AttentionPrologueSmallGpuTest, ::testing::Values(1, 6));

}  // namespace
}  // namespace reprise
