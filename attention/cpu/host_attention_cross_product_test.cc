// Tests the CPU path on the same cross-product of features, types, layouts and sizes as the kernels
// (attention/testing/cross_product.h). The same call, with unchanged capacities, runs again over
// other contents in the same memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/cpu/host_attention.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/host_memory.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/base/element_access.h"

namespace reprise {
namespace {

// Packed out, lse and block scales. The scale of out is in memory if the case requires that.
class Output {
 public:
  Output(const AttentionParams& layer, const CrossProductCase& c, int num_tokens)
      : layer_(layer),
        rounding_(c.out),
        scale_in_memory_(c.second_out_scale.has_value()),
        num_tokens_(num_tokens),
        out_(static_cast<size_t>(num_heads()) * layer.head_dim_v * SizeOf(c.out.dtype) + 1, 0xff),
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
            .scale = scale_in_memory_ ? Scale{.data = &scale_}
                                      : Scale{.value = static_cast<float>(rounding_.scale)},
            .block_scales = rounding_.block > 0 ? scales_.data() : nullptr,
            .block_token_stride = layer_.num_q_heads * num_blocks(),
            .block_head_stride = num_blocks(),
            .block = rounding_.block};
  }

  // Prepares the memory for a call: sets the scale of `rounding`, whose other fields must be
  // unchanged, and fills the results with NaN.
  void Prepare(const OutputRounding& rounding) {
    rounding_.scale = rounding.scale;
    scale_ = static_cast<float>(rounding.scale);
    std::fill(out_.begin(), out_.end(), 0xff);
    std::fill(lse_.begin(), lse_.end(), NAN);
    std::fill(scales_.begin(), scales_.end(), NAN);
  }

  bool HasTheBitsOf(const Output& other) const {
    return out_ == other.out_ && SameBits(lse_, other.lse_) && SameBits(scales_, other.scales_);
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
  static bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
  }

  int64_t num_heads() const { return int64_t{num_tokens_} * layer_.num_q_heads; }
  int64_t num_blocks() const {
    return rounding_.block > 0 ? layer_.head_dim_v / rounding_.block : 0;
  }

  AttentionParams layer_;
  OutputRounding rounding_;
  bool scale_in_memory_;
  float scale_ = NAN;
  int num_tokens_;
  std::vector<uint8_t> out_;
  std::vector<float> lse_;
  std::vector<float> scales_;
};

void RunInOrder(int num_shares, absl::FunctionRef<void(int)> run_share) {
  for (int share = 0; share < num_shares; ++share) run_share(share);
}

void ExpectClose(const Output& output, const ReferenceResult<double>& exact,
                 const ReferenceResult<float>& own, const AttentionParams& layer,
                 const OutputRounding& out) {
  const AttentionError error =
      ErrorOf(output.Values(), exact, own, layer.head_dim_v, {.head_dim = layer.head_dim_qk}, out);
  ASSERT_EQ(error.wrong, "");
  EXPECT_LE(error.out, error.out_limit);
  EXPECT_LE(error.lse, error.lse_limit);
}

// The CPU form of a captured graph: the same call with the same arguments runs repeatedly over the
// same memory. `place(fixture)` writes the contents of the memory; `call` reads them.
template <typename Fixture, typename Place, typename Compare>
void RunOverBothContents(const FixturePair<Fixture>& pair, const CrossProductCase& c,
                         HostMemory& memory, Output& output, const std::function<void()>& call,
                         const Place& place, const Compare& compare) {
  const auto run = [&](const Fixture& fixture, const OutputRounding& out) {
    memory.Rewind();
    place(fixture);
    output.Prepare(out);
    call();
  };
  run(pair.first, c.out);
  compare(pair.first, c.out);
  const Output first = output;
  run(pair.second, c.second_out());
  compare(pair.second, c.second_out());
  run(pair.first, c.out);
  EXPECT_TRUE(output.HasTheBitsOf(first)) << "the first contents again";
}

void CheckPaged(const CrossProductCase& c) {
  const FixturePair<PagedFixture> pair = MakePagedFixturePair(c.fixture);
  SCOPED_TRACE(pair.second.description);
  HostMemory memory;
  const AttentionParams layer = pair.first.Layer(memory.Placement());
  const PagedBatch batch = pair.first.Batch(memory.Placement());
  const TokenView q = pair.first.Q(memory.Placement());
  const KvLayer kv = pair.first.Kv(memory.Placement());
  const NewKeys keys = pair.first.New(memory.Placement());
  Output output(layer, c, batch.num_tokens);
  RunOverBothContents(
      pair, c, memory, output,
      [=, &output] {
        PagedAttentionOnHost(
            {.layer = layer, .kv = kv, .q = q, .output = output.View(), .new_keys = keys}, batch,
            {.run = RunInOrder, .count = 3, .share_work = 1});
      },
      [&](const PagedFixture& fixture) {
        fixture.Layer(memory.Placement());
        fixture.Batch(memory.Placement());
        fixture.Q(memory.Placement());
        fixture.Kv(memory.Placement());
        fixture.New(memory.Placement());
      },
      [&](const PagedFixture& fixture, const OutputRounding& out) {
        const AttentionParams own_layer = fixture.Layer(OnHost);
        const PagedBatch own = fixture.Batch(OnHost);
        const TokenView own_q = fixture.Q(OnHost);
        const KvLayer own_kv = fixture.Kv(OnHost);
        const NewKeys own_keys = fixture.New(OnHost);
        ExpectClose(output,
                    ReferencePagedAttention<double>(own_layer, own, own_q, own_kv, DType::kFloat64,
                                                    own_keys),
                    ReferencePagedAttention<float>(own_layer, own, own_q, own_kv, DType::kFloat64,
                                                   own_keys),
                    own_layer, out);
      });
}

void CheckRagged(const CrossProductCase& c) {
  const FixturePair<RaggedFixture> pair = MakeRaggedFixturePair(c.fixture);
  SCOPED_TRACE(pair.second.description);
  HostMemory memory;
  const AttentionParams layer = pair.first.Layer(memory.Placement());
  const RaggedBatch batch = pair.first.Batch(memory.Placement());
  const TokenView q = pair.first.q.View(memory.Placement());
  const TokenView k = pair.first.k.View(memory.Placement());
  const TokenView v = pair.first.v.View(memory.Placement());
  const KeyScales scales = {.k = pair.first.layer.k_scale.View(memory.Placement()),
                            .v = pair.first.layer.v_scale.View(memory.Placement())};
  Output output(layer, c, batch.num_tokens);
  RunOverBothContents(
      pair, c, memory, output,
      [=, &output] {
        RaggedAttentionOnHost({.layer = layer,
                               .kv = ContiguousKv(layer, k, v, scales),
                               .q = q,
                               .output = output.View()},
                              batch, {.run = RunInOrder});
      },
      [&](const RaggedFixture& fixture) {
        fixture.Layer(memory.Placement());
        fixture.Batch(memory.Placement());
        fixture.q.View(memory.Placement());
        fixture.k.View(memory.Placement());
        fixture.v.View(memory.Placement());
        fixture.layer.k_scale.View(memory.Placement());
        fixture.layer.v_scale.View(memory.Placement());
      },
      [&](const RaggedFixture& fixture, const OutputRounding& out) {
        const AttentionParams own_layer = fixture.Layer(OnHost);
        const RaggedBatch own = fixture.Batch(OnHost);
        const TokenView own_q = fixture.q.View(OnHost);
        const TokenView own_k = fixture.k.View(OnHost);
        const TokenView own_v = fixture.v.View(OnHost);
        const KeyScales own_scales = {.k = fixture.layer.k_scale.View(OnHost),
                                      .v = fixture.layer.v_scale.View(OnHost)};
        ExpectClose(output,
                    ReferenceRaggedAttention<double>(own_layer, own, own_q, own_k, own_v,
                                                     DType::kFloat64, own_scales),
                    ReferenceRaggedAttention<float>(own_layer, own, own_q, own_k, own_v,
                                                    DType::kFloat64, own_scales),
                    own_layer, out);
      });
}

TEST(HostAttentionCrossProductTest, EveryPairOfChoicesMatchesTheReferenceInRepeatedRuns) {
  for (uint64_t seed = 0; seed < 2; ++seed) {
    for (const CrossProductCase& c : CrossProductCases(seed, CrossProductSpace::kAll)) {
      c.keys == KeySource::kPaged ? CheckPaged(c) : CheckRagged(c);
      if (HasFatalFailure()) return;
    }
  }
  // The spaces of the tuned kernels also have longer rows.
  for (CrossProductSpace space : {CrossProductSpace::kDirect, CrossProductSpace::kFp8}) {
    for (const CrossProductCase& c : CrossProductCases(0, space)) {
      c.keys == KeySource::kPaged ? CheckPaged(c) : CheckRagged(c);
      if (HasFatalFailure()) return;
    }
  }
}

}  // namespace
}  // namespace reprise
