// The CPU path over the same cross-product of features, types, layouts and sizes as the kernels:
// attention/testing/cross_product.h.

#include <cstdint>
#include <vector>

#include "attention/cpu/host_attention.h"
#include "attention/reference/reference.h"
#include "attention/testing/attention_error.h"
#include "attention/testing/batch_generator.h"
#include "attention/testing/cross_product.h"
#include "attention/testing/ragged_generator.h"
#include "base/element_access.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

// Packed out, lse and block scales.
class Output {
 public:
  Output(const AttentionParams& layer, const OutputRounding& rounding, int num_tokens)
      : layer_(layer),
        rounding_(rounding),
        num_tokens_(num_tokens),
        out_(static_cast<size_t>(num_heads()) * layer.head_dim_v * SizeOf(rounding.dtype) + 1,
             0xff),
        lse_(num_heads() + 1),
        scales_(num_heads() * num_blocks() + 1) {}

  HostOutput View() {
    return {.out = {.data = out_.data(),
                    .dtype = rounding_.dtype,
                    .token_stride = int64_t{layer_.num_q_heads} * layer_.head_dim_v,
                    .head_stride = layer_.head_dim_v},
            .num_out_tokens = num_tokens_,
            .lse = lse_.data(),
            .lse_token_stride = layer_.num_q_heads,
            .lse_head_stride = 1,
            .num_lse_tokens = num_tokens_,
            .scale = {.value = static_cast<float>(rounding_.scale)},
            .block_scales = rounding_.block > 0 ? scales_.data() : nullptr,
            .block_token_stride = layer_.num_q_heads * num_blocks(),
            .block_head_stride = num_blocks(),
            .block = rounding_.block};
  }

  AttentionValues Values() const {
    AttentionValues values = {.out = {}, .lse = {lse_.begin(), lse_.begin() + num_heads()}};
    for (int64_t i = 0; i < num_heads() * layer_.head_dim_v; ++i) {
      const double scale = rounding_.block > 0 ? scales_[i / rounding_.block] : rounding_.scale;
      values.out.push_back(LoadElement<double>(out_.data(), rounding_.dtype, i) * scale);
    }
    return values;
  }

 private:
  int64_t num_heads() const { return int64_t{num_tokens_} * layer_.num_q_heads; }
  int64_t num_blocks() const {
    return rounding_.block > 0 ? layer_.head_dim_v / rounding_.block : 0;
  }

  AttentionParams layer_;
  OutputRounding rounding_;
  int num_tokens_;
  std::vector<uint8_t> out_;
  std::vector<float> lse_;
  std::vector<float> scales_;
};

void RunInOrder(int num_shares, absl::FunctionRef<void(int)> run_share) {
  for (int share = 0; share < num_shares; ++share) run_share(share);
}

void ExpectClose(const Output& output, const ReferenceResult<double>& exact,
                 const ReferenceResult<float>& own, int head_dim_v, const OutputRounding& out) {
  const AttentionError error = ErrorOf(output.Values(), exact, own, head_dim_v, {}, out);
  ASSERT_EQ(error.wrong, "");
  EXPECT_LE(error.out, error.out_limit);
  EXPECT_LE(error.lse, error.lse_limit);
}

void CheckPaged(const CrossProductCase& c) {
  const PagedFixture fixture = MakePagedFixture(c.fixture);
  SCOPED_TRACE(fixture.description);
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.Q(OnHost);
  const KvLayer kv = fixture.Kv(OnHost);
  const NewKeys keys = fixture.New(OnHost);
  Output output(layer, c.out, batch.num_tokens);
  PagedAttentionOnHost(layer, batch, q, kv, output.View(),
                       {.run = RunInOrder, .count = 3, .share_work = 1}, BestVectorKernels(), keys);
  ExpectClose(output, ReferencePagedAttention<double>(layer, batch, q, kv, DType::kFloat64, keys),
              ReferencePagedAttention<float>(layer, batch, q, kv, DType::kFloat64, keys),
              layer.head_dim_v, c.out);
}

void CheckRagged(const CrossProductCase& c) {
  const RaggedFixture fixture = MakeRaggedFixture(c.fixture);
  SCOPED_TRACE(fixture.description);
  const AttentionParams layer = fixture.Layer(OnHost);
  const RaggedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.q.View(OnHost);
  const TokenView k = fixture.k.View(OnHost);
  const TokenView v = fixture.v.View(OnHost);
  Output output(layer, c.out, batch.num_tokens);
  RaggedAttentionOnHost(layer, batch, q, k, v, output.View(), {.run = RunInOrder});
  ExpectClose(output, ReferenceRaggedAttention<double>(layer, batch, q, k, v),
              ReferenceRaggedAttention<float>(layer, batch, q, k, v), layer.head_dim_v, c.out);
}

TEST(HostAttentionCrossProductTest, EveryPairOfChoicesAgreesWithTheReference) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    for (const CrossProductCase& c : CrossProductCases(seed, CrossProductSpace::kAll)) {
      c.keys == KeySource::kPaged ? CheckPaged(c) : CheckRagged(c);
      if (HasFatalFailure()) return;
    }
  }
  // Longer rows, and caches with nothing to convert.
  for (CrossProductSpace space : {CrossProductSpace::kDirect, CrossProductSpace::kFp8}) {
    for (const CrossProductCase& c : CrossProductCases(0, space)) {
      c.keys == KeySource::kPaged ? CheckPaged(c) : CheckRagged(c);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace reprise
