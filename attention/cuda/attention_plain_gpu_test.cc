// Tests the two warpgroup kernels of each 16-bit type and head dim: for plain units only, and for
// all units (attention/cuda/hopper/warpgroup_kernel.cuh). Their results for the same call are
// bitwise identical, and close to the results of the general kernels. out may be aligned to 16 or 8
// bytes.

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/attention.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/torch_dtype.h"

namespace reprise {
namespace {

constexpr int kHeads = 8;
constexpr int kKvHeads = 2;
constexpr int kBlockSize = 16;

struct Call {
  std::vector<int32_t> query_lens;
  std::vector<int32_t> lens;
  int head_dim = 128;
  at::ScalarType dtype = at::kBFloat16;
  std::optional<int> window = {};
  int num_sms = 132;

  // head_dim_qk 192 has head_dim_v 128, as in MLA that is not absorbed.
  int head_dim_v() const { return head_dim == 192 ? 128 : head_dim; }
};

at::Tensor OnDevice(const std::vector<int32_t>& values) {
  return at::tensor(values, at::TensorOptions().dtype(at::kInt)).to(at::kCUDA);
}

// Random queries, keys and values of a call.
class Layer {
 public:
  explicit Layer(const Call& call) : call_(call) {
    const int num_rows = static_cast<int>(call.lens.size());
    std::vector<int32_t> starts = {0};
    for (const int32_t len : call.query_lens) starts.push_back(starts.back() + len);
    const int longest = *std::max_element(call.lens.begin(), call.lens.end());
    const int max_blocks = (longest + kBlockSize - 1) / kBlockSize;
    const int num_blocks = num_rows * max_blocks;
    start_loc_ = OnDevice(starts);
    seq_lens_ = OnDevice(call.lens);
    table_ = at::randperm(num_blocks, at::TensorOptions(at::kCUDA).dtype(at::kInt));
    batch_ = {.query_start_loc = start_loc_.const_data_ptr<int32_t>(),
              .seq_lens = seq_lens_.const_data_ptr<int32_t>(),
              .block_table = table_.const_data_ptr<int32_t>(),
              .block_table_stride = max_blocks,
              .num_rows = num_rows,
              .num_tokens = starts.back(),
              .max_query_len = *std::max_element(call.query_lens.begin(), call.query_lens.end()),
              .max_seq_len = longest,
              .num_tables = num_rows,
              .max_blocks = max_blocks};
    const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(call.dtype);
    q_ = at::randn({starts.back(), kHeads, call.head_dim}, options);
    k_ = at::randn({num_blocks, kBlockSize, kKvHeads, call.head_dim}, options);
    v_ = at::randn({num_blocks, kBlockSize, kKvHeads, call.head_dim_v()}, options);
    kv_ = {.k = ViewOf(k_),
           .v = ViewOf(v_),
           .dtype = *FromScalarType(call.dtype),
           .num_blocks = num_blocks,
           .block_size = kBlockSize,
           .num_kv_heads = kKvHeads,
           .head_dim_qk = call.head_dim,
           .head_dim_v = call.head_dim_v()};
  }

  // `head_gap`: elements of out between heads. `q_scale`: if in device memory, the host cannot
  // decide that all units are plain.
  at::Tensor Attend(int head_gap, const Scale& q_scale, int max_tier = 2) const {
    const int64_t pitch = call_.head_dim_v() + head_gap;
    const at::Tensor memory = at::full({batch_.num_tokens * kHeads * pitch}, NAN, q_.options());
    at::Tensor out = at::as_strided(memory, {batch_.num_tokens, kHeads, call_.head_dim_v()},
                                    {kHeads * pitch, pitch, 1});
    AttendInto({out}, q_scale, max_tier);
    return out.contiguous();
  }

  // Writes the tokens of the batch first.
  void AttendInto(const AttentionOutput& output, const Scale& q_scale, int max_tier) const {
    const AttentionParams layer = {.num_q_heads = kHeads,
                                   .num_kv_heads = kKvHeads,
                                   .head_dim_qk = call_.head_dim,
                                   .head_dim_v = call_.head_dim_v(),
                                   .window_left = call_.window,
                                   .q_scale = q_scale};
    GpuTileSchedule work({.dtype = kv_.dtype,
                          .num_q_heads = kHeads,
                          .num_kv_heads = kKvHeads,
                          .head_dim_qk = call_.head_dim,
                          .head_dim_v = call_.head_dim_v(),
                          .max_rows = batch_.num_rows,
                          .max_tokens = batch_.num_tokens,
                          .max_query_len = batch_.max_query_len,
                          .max_seq_len = batch_.max_seq_len,
                          .device = {.num_sms = call_.num_sms},
                          .kernels = {.max_tier = max_tier}});
    work.Poison();
    const absl::StatusOr<BatchSchedule> built = LaunchTileSchedule(
        batch_, WindowOf(layer), work.schedule(), c10::cuda::getCurrentCUDAStream().stream());
    EXPECT_TRUE(built.ok()) << built.status();
    const absl::Status status = PagedAttention(layer, batch_, *built, q_, kv_, output);
    EXPECT_TRUE(status.ok()) << status;
  }

  int num_tokens() const { return batch_.num_tokens; }

 private:
  KvView ViewOf(const at::Tensor& tensor) const {
    return {.data = tensor.data_ptr(),
            .block_stride = tensor.stride(0),
            .token_stride = tensor.stride(1),
            .head_stride = tensor.stride(2),
            .dim_chunk = static_cast<int>(tensor.size(3))};
  }

  Call call_;
  at::Tensor start_loc_, seq_lens_, table_, q_, k_, v_;
  PagedBatch batch_;
  KvLayer kv_;
};

class AttentionPlainSmallGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // Prompts in round-robin schedules (head dims to 128), and a few that are split and combined. All
  // lengths end within KV tiles and Q tiles.
  static std::vector<Call> Calls() {
    std::vector<Call> calls;
    for (const int head_dim : {64, 96, 128, 192, 256}) {
      for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
        calls.push_back({{700}, {700}, head_dim, dtype});
        calls.push_back({{300, 33, 900}, {300, 2000, 901}, head_dim, dtype, {}, 3});
        calls.push_back({{130}, {5000}, head_dim, dtype});
        calls.push_back({{500, 200}, {1500, 200}, head_dim, dtype, 257});
      }
    }
    return calls;
  }
};

TEST_F(AttentionPlainSmallGpuTest, BothWarpgroupKernelsAreBitwiseIdentical) {
  const at::Tensor one = at::ones({1}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  for (const Call& call : Calls()) {
    const Layer layer(call);
    const at::Tensor plain = layer.Attend(0, {});
    EXPECT_FALSE(plain.isnan().any().item<bool>());
    EXPECT_TRUE(plain.equal(layer.Attend(0, {.data = one.const_data_ptr<float>()})))
        << call.head_dim << ", " << call.query_lens.size() << " rows";
  }
}

// The kernels round weights and out differently.
TEST_F(AttentionPlainSmallGpuTest, WarpgroupKernelsMatchTheGeneralKernels) {
  for (const Call& call : Calls()) {
    const Layer layer(call);
    const at::Tensor tuned = layer.Attend(0, {}).to(at::kFloat);
    const at::Tensor general = layer.Attend(0, {}, 1).to(at::kFloat);
    EXPECT_TRUE(at::allclose(tuned, general, /*rtol=*/0.02, /*atol=*/0.01))
        << "largest difference " << tuned.sub(general).abs().max().item<float>() << ": "
        << call.head_dim << ", " << call.query_lens.size() << " rows";
  }
}

TEST_F(AttentionPlainSmallGpuTest, RowsOfOutMayBeAlignedTo8Bytes) {
  for (const Call& call : Calls()) {
    const Layer layer(call);
    EXPECT_TRUE(layer.Attend(0, {}).equal(layer.Attend(4, {})))
        << call.head_dim << ", " << call.query_lens.size() << " rows";
  }
}

// out and lse may have different numbers of tokens after those of the batch. Each is cleared to its
// own end, and no memory behind it is written.
TEST_F(AttentionPlainSmallGpuTest, ClearsEachOutputUpToItsOwnNumberOfTokens) {
  constexpr int kGuard = 4;  // tokens behind the end of out and of lse
  const at::TensorOptions floats = at::TensorOptions(at::kCUDA).dtype(at::kFloat);
  for (const int head_dim : {64, 128, 256}) {
    const Layer layer({{100, 1}, {700, 90}, head_dim});
    const int num_tokens = layer.num_tokens();
    for (const auto& [out_past, lse_past] : {std::pair(5, 0), std::pair(0, 5)}) {
      for (const int max_tier : {1, 2}) {
        SCOPED_TRACE(testing::Message() << head_dim << ", tier " << max_tier << ", out " << out_past
                                        << " and lse " << lse_past << " tokens longer");
        const int out_end = num_tokens + out_past, lse_end = num_tokens + lse_past;
        const at::Tensor out_memory =
            at::full({out_end + kGuard, kHeads, head_dim}, 3, floats.dtype(at::kBFloat16));
        const at::Tensor lse_memory = at::full({lse_end + kGuard, kHeads}, 3, floats);
        at::Tensor out = out_memory.slice(0, 0, out_end);
        at::Tensor lse = lse_memory.slice(0, 0, lse_end);
        layer.AttendInto({out, &lse}, {}, max_tier);
        EXPECT_TRUE(out.slice(0, num_tokens).eq(0).all().item<bool>());
        EXPECT_TRUE(lse.slice(0, num_tokens).eq(-INFINITY).all().item<bool>());
        EXPECT_TRUE(out_memory.slice(0, out_end).eq(3).all().item<bool>());
        EXPECT_TRUE(lse_memory.slice(0, lse_end).eq(3).all().item<bool>());
        EXPECT_FALSE(out.isnan().any().item<bool>());
        EXPECT_TRUE(lse.slice(0, 0, num_tokens).isfinite().all().item<bool>());
      }
    }
  }
}

}  // namespace
}  // namespace reprise
