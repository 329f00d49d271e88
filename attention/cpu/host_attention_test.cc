// Compares the CPU path with the float64 reference on random hostile batches. The tolerance is
// attention/testing/attention_error.h's limit for float32 arithmetic rounded to the dtype of out.

#include "reprise/attention/cpu/host_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/cpu/tile.h"
#include "reprise/attention/reference/reference.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/element_access.h"
#include "reprise/base/testing/allocation_counter.h"

namespace reprise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Runs the shares one after another, the last share first.
void RunBackwards(int num_shares, absl::FunctionRef<void(int)> run_share) {
  for (int share = num_shares - 1; share >= 0; --share) run_share(share);
}

// Uses `count` shares even if there is little work.
HostThreads Threads(int count) { return {.run = RunBackwards, .count = count, .share_work = 1}; }

// Memory for out and lse with gaps. All of it is poisoned.
class Output {
 public:
  // Uses only the shape fields of `layer`. An fp8 out is quantised, with one scale or one per
  // block.
  Output(const AttentionParams& layer, DType dtype, int num_tokens, Random& random)
      : layer_(layer),
        dtype_(dtype),
        num_tokens_(num_tokens),
        rounding_(DrawRounding(layer, dtype, random)),
        head_stride_(layer.head_dim_v + random.Int(0, 3)),
        token_stride_(head_stride_ * layer.num_q_heads + random.Int(0, 5)),
        out_((num_tokens * token_stride_ + 1) * SizeOf(dtype), 0xff),
        lse_(static_cast<size_t>(num_tokens) * (layer.num_q_heads + 1) + 1, kPoison),
        scales_(rounding_.block == 0 ? 0 : num_tokens * scales_of_token(), kPoison) {}

  HostOutput View() {
    return {.out = {.data = out_.data(),
                    .dtype = dtype_,
                    .token_stride = token_stride_,
                    .head_stride = head_stride_},
            .num_out_tokens = num_tokens_,
            .lse = lse_.data(),
            .lse_token_stride = layer_.num_q_heads + 1,
            .lse_head_stride = 1,
            .num_lse_tokens = num_tokens_,
            .scale = {.value = static_cast<float>(rounding_.scale)},
            .block_scales = scales_.empty() ? nullptr : scales_.data(),
            .block_token_stride = scales_of_token(),
            .block_head_stride = scales_of_head(),
            .block = rounding_.block};
  }
  const OutputRounding& rounding() const { return rounding_; }

  // Returns the stored value times its scale.
  double out(int token, int head, int dim) const {
    const double stored =
        LoadElement<double>(out_.data(), dtype_, token * token_stride_ + head * head_stride_ + dim);
    if (rounding_.block == 0) return stored * rounding_.scale;
    return stored *
           scales_[token * scales_of_token() + head * scales_of_head() + dim / rounding_.block];
  }
  float lse(int token, int head) const { return lse_[token * (layer_.num_q_heads + 1) + head]; }

  // Checks that the gaps between the strides are unchanged.
  void ExpectGapsUntouched() const {
    std::vector<bool> inside(out_.size());
    for (int t = 0; t < num_tokens_; ++t) {
      EXPECT_EQ(lse_[t * (layer_.num_q_heads + 1) + layer_.num_q_heads], kPoison);
      for (int h = 0; h < layer_.num_q_heads; ++h) {
        const int64_t first = (t * token_stride_ + h * head_stride_) * SizeOf(dtype_);
        std::fill_n(inside.begin() + first, layer_.head_dim_v * SizeOf(dtype_), true);
      }
    }
    for (size_t i = 0; i < out_.size(); ++i) ASSERT_TRUE(inside[i] || out_[i] == 0xff) << i;
  }

  friend bool operator==(const Output& a, const Output& b) {
    return a.out_ == b.out_ && a.lse_ == b.lse_ && a.scales_ == b.scales_;
  }

 private:
  static constexpr float kPoison = 12345.0f;

  static OutputRounding DrawRounding(const AttentionParams& layer, DType dtype, Random& random) {
    OutputRounding rounding = {.dtype = dtype};
    if (!IsFp8(dtype)) return rounding;
    const int block = 4 * random.Int(1, 4);
    if (layer.head_dim_v % block == 0 && random.OneIn(2)) {
      rounding.block = block;
    } else {
      rounding.scale = random.Pick({0.0078125f, 0.02f});
    }
    return rounding;
  }
  int64_t scales_of_head() const {
    return rounding_.block == 0 ? 0 : layer_.head_dim_v / rounding_.block;
  }
  int64_t scales_of_token() const { return layer_.num_q_heads * scales_of_head(); }

  AttentionParams layer_;
  DType dtype_;
  int num_tokens_;
  OutputRounding rounding_;
  int64_t head_stride_;
  int64_t token_stride_;
  std::vector<uint8_t> out_;
  std::vector<float> lse_;
  std::vector<float> scales_;  // empty: a single scale
};

void ExpectClose(const Output& output, const ReferenceResult<double>& exact,
                 const ReferenceResult<float>& own, const AttentionParams& layer, int num_tokens) {
  AttentionValues got;
  for (int t = 0; t < num_tokens; ++t) {
    for (int h = 0; h < layer.num_q_heads; ++h) {
      got.lse.push_back(output.lse(t, h));
      for (int d = 0; d < layer.head_dim_v; ++d) got.out.push_back(output.out(t, h, d));
    }
  }
  const AttentionError error = ErrorOf(got, exact, own, layer.head_dim_v, {}, output.rounding());
  ASSERT_EQ(error.wrong, "");
  ASSERT_LE(error.out, error.out_limit);
  ASSERT_LE(error.lse, error.lse_limit);
}

// Checks the rows of out and lse after the batch's tokens.
void ExpectInert(const Output& output, const AttentionParams& layer, int begin, int end) {
  for (int t = begin; t < end; ++t) {
    for (int h = 0; h < layer.num_q_heads; ++h) {
      ASSERT_EQ(output.lse(t, h), -kInf);
      for (int d = 0; d < layer.head_dim_v; ++d) ASSERT_EQ(output.out(t, h, d), 0.0);
    }
  }
}

void CheckPaged(const PagedFixture& fixture, uint64_t seed) {
  SCOPED_TRACE(fixture.description);
  Random random(seed);
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.Q(OnHost);
  const KvLayer kv = fixture.Kv(OnHost);
  const NewKeys keys = fixture.New(OnHost);
  const DType dtype = random.OneIn(4)
                          ? random.Pick({DType::kFp8E4M3, DType::kFp8E5M2})
                          : (random.OneIn(3) || IsFp8(q.dtype) ? DType::kFloat32 : q.dtype);
  const int num_rows_out = batch.num_tokens + random.Pick({0, 0, 3});
  Output output(layer, dtype, num_rows_out, random);
  Output again = output;

  const absl::Span<const VectorKernels* const> sets = SupportedVectorKernels();
  const VectorKernels& kernels = *sets[random.Int(0, static_cast<int>(sets.size()) - 1)];
  HostCall call = {.layer = layer,
                   .kv = kv,
                   .q = q,
                   .output = output.View(),
                   .kernels = &kernels,
                   .new_keys = keys};
  PagedAttentionOnHost(call, batch, {.run = RunBackwards});
  ExpectClose(output, ReferencePagedAttention<double>(layer, batch, q, kv, DType::kFloat64, keys),
              ReferencePagedAttention<float>(layer, batch, q, kv, DType::kFloat64, keys), layer,
              batch.num_tokens);
  ExpectInert(output, layer, batch.num_tokens, num_rows_out);
  output.ExpectGapsUntouched();

  call.output = again.View();
  PagedAttentionOnHost(call, batch, Threads(random.Int(2, 9)));
  ASSERT_TRUE(again == output) << "the result depends on the number of threads";
}

class HostAttentionRandomTest : public ::testing::TestWithParam<int> {};

// Number of shards of seeds that run in parallel.
constexpr int kNumShards = 4;

TEST_P(HostAttentionRandomTest, RandomBatchesMatchTheReference) {
  for (uint64_t seed = GetParam(); seed < 3000; seed += kNumShards) {
    FixtureOptions options = {.seed = seed, .allowed = FeatureSet::All()};
    // Quantises q for some seeds.
    if (seed % 7 == 0) options.q_dtype = seed % 2 == 0 ? DType::kFp8E4M3 : DType::kFp8E5M2;
    CheckPaged(MakePagedFixture(options), seed);
    if (HasFatalFailure()) return;
  }
}

TEST_P(HostAttentionRandomTest, LongRowsMatchTheReference) {
  for (uint64_t seed = GetParam(); seed < 60; seed += kNumShards) {
    CheckPaged(MakePagedFixture({.seed = seed,
                                 .max_rows = 3,
                                 .max_query_len = 40,
                                 .max_seq_len = 2500,
                                 .num_kv_heads = 1,
                                 .group_size = seed % 3 == 0 ? 40 : 2,
                                 .head_dim_qk = 16}),
               seed);
    if (HasFatalFailure()) return;
  }
}

TEST_P(HostAttentionRandomTest, RandomRaggedBatchesMatchTheReference) {
  for (uint64_t seed = GetParam(); seed < 1000; seed += kNumShards) {
    const RaggedFixture fixture = MakeRaggedFixture({.seed = seed});
    SCOPED_TRACE(fixture.description);
    Random random(seed);
    const AttentionParams layer = fixture.Layer(OnHost);
    const RaggedBatch batch = fixture.Batch(OnHost);
    const TokenView q = fixture.q.View(OnHost);
    const TokenView k = fixture.k.View(OnHost);
    const TokenView v = fixture.v.View(OnHost);
    Output output(layer, q.dtype, batch.num_tokens, random);
    RaggedAttentionOnHost(
        {.layer = layer, .kv = ContiguousKv(layer, k, v), .q = q, .output = output.View()}, batch,
        Threads(random.Int(1, 5)));
    ExpectClose(output, ReferenceRaggedAttention<double>(layer, batch, q, k, v),
                ReferenceRaggedAttention<float>(layer, batch, q, k, v), layer, batch.num_tokens);
    output.ExpectGapsUntouched();
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, HostAttentionRandomTest, ::testing::Range(0, kNumShards));

TEST(HostAttentionTest, RowsThatEndAtBlockOrSegmentBoundariesMatchTheReference) {
  for (const int border : {kKeyBlockLen, kSegmentLen, 2 * kSegmentLen}) {
    for (const int seq_len : {border - 1, border, border + 1, border + 2}) {
      CheckPaged(MakePagedFixture({.seed = static_cast<uint64_t>(seq_len),
                                   .allowed = {},
                                   .max_rows = 2,
                                   .max_query_len = 3,
                                   .min_seq_len = seq_len,
                                   .max_seq_len = seq_len,
                                   .num_kv_heads = 1,
                                   .group_size = 2,
                                   .head_dim_qk = 16}),
                 static_cast<uint64_t>(seq_len));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(HostAttentionTest, RepeatedCallsDoNotAllocate) {
  const PagedFixture fixture = MakePagedFixture({.seed = 5, .max_seq_len = 1500});
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const KvLayer kv = fixture.Kv(OnHost);
  const TokenView q = fixture.Q(OnHost);
  Random random(0);
  Output output(layer, DType::kFloat32, batch.num_tokens, random);
  const HostCall call = {.layer = layer, .kv = kv, .q = q, .output = output.View()};
  for (int num_threads : {1, 8}) PagedAttentionOnHost(call, batch, Threads(num_threads));
  const AllocationCounter allocations;
  for (int num_threads : {1, 8}) PagedAttentionOnHost(call, batch, Threads(num_threads));
  EXPECT_EQ(allocations.count(), 0);
}

TEST(HostAttentionTest, SharesMayRunConcurrently) {
  const auto on_threads = [](int num_shares, absl::FunctionRef<void(int)> run_share) {
    std::vector<std::thread> threads;
    for (int share = 0; share < num_shares; ++share) threads.emplace_back(run_share, share);
    for (std::thread& thread : threads) thread.join();
  };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const PagedFixture fixture = MakePagedFixture({.seed = seed, .max_seq_len = 1500});
    SCOPED_TRACE(fixture.description);
    const AttentionParams layer = fixture.Layer(OnHost);
    const PagedBatch batch = fixture.Batch(OnHost);
    const KvLayer kv = fixture.Kv(OnHost);
    Random random(seed);
    Output alone(layer, DType::kFloat32, batch.num_tokens, random);
    Output together = alone;
    HostCall call = {.layer = layer, .kv = kv, .q = fixture.Q(OnHost), .output = alone.View()};
    PagedAttentionOnHost(call, batch, Threads(1));
    call.output = together.View();
    PagedAttentionOnHost(call, batch, {.run = on_threads, .count = 4, .share_work = 1});
    ASSERT_TRUE(together == alone);
  }
}

TEST(HostAttentionTest, AnIdleBatchClearsTheCallersRows) {
  const AttentionParams layer = {
      .num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 8, .head_dim_v = 8};
  const std::vector<int32_t> loc = {0};
  const PagedBatch batch = {.query_start_loc = loc.data()};
  Random random(0);
  Output output(layer, DType::kBFloat16, 3, random);
  PagedAttentionOnHost({.layer = layer, .kv = {}, .q = {}, .output = output.View()}, batch,
                       Threads(4));
  ExpectInert(output, layer, 0, 3);
  output.ExpectGapsUntouched();
}

}  // namespace
}  // namespace reprise
