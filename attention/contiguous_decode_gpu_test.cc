// Decode of a single sequence without a block table on a GPU: one captured graph, replayed as the
// sequence grows and shrinks.

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attention/attention.h"
#include "attention/contiguous_decode.h"
#include "attention/testing/gpu_memory.h"
#include "attention/work_map/work_map_build.h"
#include "base/testing/device_array.h"
#include "base/torch_dtype.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kCapacity = 700;
constexpr int kHeads = 2;
constexpr int kGroup = 3;
constexpr int kDim = 64;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// [heads of q, kDim] for one query over the first num_keys keys of [kv heads, keys, dim].
at::Tensor Expected(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int num_keys) {
  const auto keys_of = [&](const at::Tensor& all) {
    return all.slice(1, 0, num_keys).repeat_interleave(kGroup, 0).to(at::kDouble);
  };
  const at::Tensor queries = q.to(at::kDouble).unsqueeze(1);
  const at::Tensor scores = queries.matmul(keys_of(k).transpose(1, 2)) / std::sqrt(kDim);
  return scores.softmax(-1).matmul(keys_of(v)).squeeze(1);
}

void DecodeInAGraph(DType dtype, bool is_hnd) {
  const AttentionParams layer = {.num_q_heads = kHeads * kGroup,
                                 .num_kv_heads = kHeads,
                                 .head_dim_qk = kDim,
                                 .head_dim_v = kDim};
  const auto options = at::TensorOptions().dtype(ToScalarType(dtype)).device(at::kCUDA);
  const at::Tensor q = at::rand({1, kHeads * kGroup, kDim}, options);
  const at::Tensor k = at::rand({kHeads, kCapacity, kDim}, options);
  const at::Tensor v = at::rand({kHeads, kCapacity, kDim}, options);
  const std::vector<int64_t> shape = is_hnd ? std::vector<int64_t>{kHeads, kCapacity, kDim}
                                            : std::vector<int64_t>{kCapacity, kHeads, kDim};
  at::Tensor own_k = at::full(shape, kNan, options);
  at::Tensor own_v = at::full(shape, kNan, options);
  const at::Tensor k_tokens = is_hnd ? TokensOfHnd(own_k) : own_k;
  const at::Tensor v_tokens = is_hnd ? TokensOfHnd(own_v) : own_v;
  at::Tensor out = at::full_like(q, kNan);
  at::Tensor bounds = at::tensor({0, 1, 0, 1}, at::kInt).to(at::kCUDA);
  const RaggedBatch batch =
      ContiguousDecode(bounds.const_data_ptr<int32_t>(), {.capacity = kCapacity});
  GpuWorkMap work({.dtype = dtype,
                   .num_q_heads = layer.num_q_heads,
                   .num_kv_heads = layer.num_kv_heads,
                   .head_dim_qk = kDim,
                   .head_dim_v = kDim,
                   .max_rows = 1,
                   .max_tokens = 1,
                   .max_query_len = 1,
                   .max_seq_len = kCapacity});
  CheckCuda(cudaDeviceSynchronize());
  CapturedWork graph([&](cudaStream_t stream) {
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(stream, c10::cuda::current_device()));
    ASSERT_EQ(LaunchWorkMap(batch, WindowOf(layer), work.map(), stream), absl::OkStatus());
    ASSERT_EQ(RaggedAttention(layer, batch, work.map(), q, k_tokens, v_tokens, out, nullptr),
              absl::OkStatus());
  });
  const double limit = dtype == DType::kFloat32 ? 1e-5 : 2e-2;
  for (int num_keys : {1, 2, 17, 64, 65, kCapacity, 300, 3}) {
    own_k.fill_(kNan);
    own_v.fill_(kNan);
    k_tokens.slice(0, 0, num_keys).copy_(k.transpose(0, 1).slice(0, 0, num_keys));
    v_tokens.slice(0, 0, num_keys).copy_(v.transpose(0, 1).slice(0, 0, num_keys));
    bounds.copy_(at::tensor({0, 1, 0, num_keys}, at::kInt));
    out.fill_(kNan);
    work.Poison();
    graph.Replay();
    const at::Tensor error = (out[0].to(at::kDouble) - Expected(q[0], k, v, num_keys)).abs();
    EXPECT_LT(error.max().item<double>(), limit) << num_keys << " keys";
  }
}

TEST(ContiguousDecodeGpuTest, AReplayedGraphFollowsTheNumberOfKeysInBothLayouts) {
  if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (bool is_hnd : {false, true}) {
      SCOPED_TRACE(testing::Message() << dtype << (is_hnd ? ", HND" : ", NHD"));
      DecodeInAGraph(dtype, is_hnd);
    }
  }
}

}  // namespace
}  // namespace reprise
