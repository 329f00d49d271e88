#include "attention/contiguous_decode.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>

#include <cmath>
#include <limits>
#include <vector>

#include "attention/attention.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int kCapacity = 40;
constexpr int kHeads = 2;
constexpr int kGroup = 3;
constexpr int kDim = 16;

// [heads of q, kDim] for one query over the first num_keys keys of [kv heads, keys, dim].
at::Tensor Expected(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int num_keys) {
  const at::Tensor keys = k.slice(1, 0, num_keys).repeat_interleave(kGroup, 0);
  const at::Tensor values = v.slice(1, 0, num_keys).repeat_interleave(kGroup, 0);
  const at::Tensor scores = q.unsqueeze(1).matmul(keys.transpose(1, 2)) / std::sqrt(kDim);
  return scores.softmax(-1).matmul(values).squeeze(1);
}

TEST(ContiguousDecodeTest, FollowsTheNumberOfKeysInBothLayouts) {
  const AttentionParams layer = {.num_q_heads = kHeads * kGroup,
                                 .num_kv_heads = kHeads,
                                 .head_dim_qk = kDim,
                                 .head_dim_v = kDim};
  at::Tensor k = at::rand({kHeads, kCapacity, kDim});
  at::Tensor v = at::rand({kHeads, kCapacity, kDim});
  const at::Tensor q = at::rand({1, kHeads * kGroup, kDim});
  std::vector<int32_t> bounds = {0, 1, 0, 0};
  const RaggedBatch batch = ContiguousDecode(bounds.data(), {.capacity = kCapacity});
  for (int num_keys : {1, 2, 17, kCapacity}) {
    bounds[3] = num_keys;
    at::Tensor hnd_k = at::full_like(k, std::numeric_limits<float>::quiet_NaN());
    at::Tensor hnd_v = at::full_like(v, std::numeric_limits<float>::quiet_NaN());
    hnd_k.slice(1, 0, num_keys).copy_(k.slice(1, 0, num_keys));
    hnd_v.slice(1, 0, num_keys).copy_(v.slice(1, 0, num_keys));
    const at::Tensor nhd_k = hnd_k.transpose(0, 1).contiguous();
    const at::Tensor nhd_v = hnd_v.transpose(0, 1).contiguous();
    at::Tensor out = at::empty_like(q);
    const at::Tensor expected = Expected(q[0], k, v, num_keys);
    ASSERT_TRUE(
        RaggedAttention(layer, batch, {}, q, TokensOfHnd(hnd_k), TokensOfHnd(hnd_v), out, nullptr)
            .ok());
    EXPECT_LT((out[0] - expected).abs().max().item<float>(), 1e-5f) << num_keys;
    ASSERT_TRUE(RaggedAttention(layer, batch, {}, q, nhd_k, nhd_v, out, nullptr).ok());
    EXPECT_LT((out[0] - expected).abs().max().item<float>(), 1e-5f) << num_keys;
  }
}

}  // namespace
}  // namespace reprise
