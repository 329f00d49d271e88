// The attention kernels against the float64 reference, on random hostile batches: every field of
// PagedBatch, RaggedBatch and AttentionParams that CUDA serves, every layout, and map of any split.
//
// What is allowed is in attention/testing/attention_error.h: twice the error of the same maths in
// the kernel's precision, a fixture at a time with a floor, and over all fixtures without one.

#include <cstdint>
#include <iostream>
#include <string>

#include "attention/attention_cuda.h"
#include "attention/reference.h"
#include "attention/testing/attention_error.h"
#include "attention/testing/batch_generator.h"
#include "attention/testing/gpu_attention.h"
#include "attention/testing/ragged_generator.h"
#include "attention/testing/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 4;

class AttentionGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }
};

// Small cases, for compute-sanitizer.
class AttentionSmallGpuTest : public AttentionGpuTest {};

// fp8 has a scale of its own, or blocks of columns with one each.
GpuAttentionOptions DrawOptions(DType products, const AttentionParams& layer, Random& random) {
  GpuAttentionOptions options = {
      .out_dtype =
          random.Pick({products, products, DType::kFloat32, DType::kFp8E4M3, DType::kFp8E5M2}),
      .num_extra_tokens = random.Pick({0, 0, 3}),
      .out_head_gap = random.Pick({0, 0, 4, 3}),
      .out_token_gap = random.Pick({0, 0, 8, 5}),
      .num_sms = random.Pick({1, 3, 132}),
      .mode = random.OneIn(4) ? WorkMapMode::kDeterministic : WorkMapMode::kBalanced};
  if (!IsFp8(*options.out_dtype)) return options;
  const int block = 4 * random.Pick({1, 2, 4, 8, 16, 32});
  if (layer.head_dim_v % block == 0 && random.OneIn(2)) {
    options.out_block = block;
  } else {
    options.out_scale = random.Pick({0.004f, 0.02f});
  }
  return options;
}

template <typename Fixture>
void CheckFixture(const Fixture& fixture, const ReferenceResult<double>& exact,
                  const ReferenceResult<float>& own, DType products, SharedPrefix shared_prefix,
                  Random& random, ErrorTotals& totals) {
  GpuAttentionOptions options = DrawOptions(products, fixture.layer.params, random);
  options.shared_prefix = shared_prefix;
  if (shared_prefix == SharedPrefix::kTaken) options.mode = WorkMapMode::kBalanced;
  GpuAttention gpu(fixture, options);
  const absl::Status status = gpu.Run();
  ASSERT_TRUE(status.ok()) << status;
  const DType operands = gpu.layer().rotary ? products : DType::kFloat32;
  const AttentionError error = ErrorOf(gpu.Values(), exact, own, gpu.layer().head_dim_v,
                                       {.dtype = products, .operands = operands},
                                       {.dtype = *options.out_dtype,
                                        .scale = options.out_scale.value_or(1.0f),
                                        .block = options.out_block});
  ASSERT_EQ(error.wrong, "");
  EXPECT_LE(error.out, error.out_limit) << "out of " << *options.out_dtype;
  EXPECT_LE(error.lse, error.lse_limit);
  EXPECT_EQ(gpu.FaultOutside(), "");
  totals.Add(error);
}

// What the kernels multiply in; of float32 nothing is rounded.
DType ProductsOf(DType q_dtype, DType kv_dtype) {
  if (IsFp8(q_dtype)) return kv_dtype == DType::kFloat16 ? kv_dtype : DType::kBFloat16;
  return q_dtype;
}
DType RoundingOf(DType products) {
  return products == DType::kFloat32 ? DType::kFloat64 : products;
}

// A type that a cache beside q of this type may have.
DType DrawKvType(DType q_dtype, Random& random) {
  if (random.OneIn(2)) return random.Pick({DType::kFp8E4M3, DType::kFp8E5M2});
  if (IsFp8(q_dtype)) return random.Pick({DType::kFloat16, DType::kBFloat16});
  if (q_dtype == DType::kFloat32 && random.OneIn(3)) {
    return random.Pick({DType::kFloat16, DType::kBFloat16});
  }
  return q_dtype;
}

FixtureOptions OptionsOfRound(uint64_t seed, DType dtype, Random& random) {
  FixtureOptions options = {.seed = seed,
                            .allowed = FeatureSet::All(),
                            .max_query_len = random.Pick({1, 4, 12, 40}),
                            .max_seq_len = random.Pick({20, 80, 80, 300}),
                            .q_dtype = dtype,
                            .kv_dtype = DrawKvType(dtype, random)};
  if (random.OneIn(20)) options.group_size = random.Pick({16, 20, 33, 70});
  if (options.max_seq_len == 300 || options.group_size) options.num_kv_heads = 1;
  return options;
}

void CheckPaged(const FixtureOptions& options, Random& random, ErrorTotals& totals) {
  const SharedPrefix shared_prefix = random.OneIn(4) || options.required.Has(Feature::kCommonPrefix)
                                         ? SharedPrefix::kTaken
                                         : SharedPrefix::kIgnored;
  const PagedFixture fixture = MakePagedFixture(options);
  SCOPED_TRACE(fixture.description);
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.Q(OnHost);
  const KvLayer kv = fixture.Kv(OnHost);
  const NewKeys keys = fixture.New(OnHost);
  const DType products = ProductsOf(q.dtype, kv.dtype);
  CheckFixture(fixture, ReferencePagedAttention<double>(layer, batch, q, kv, DType::kFloat64, keys),
               ReferencePagedAttention<float>(layer, batch, q, kv, RoundingOf(products), keys),
               products, shared_prefix, random, totals);
}

void CheckRagged(const FixtureOptions& options, Random& random, ErrorTotals& totals) {
  const RaggedFixture fixture = MakeRaggedFixture(options);
  SCOPED_TRACE(fixture.description);
  const AttentionParams layer = fixture.Layer(OnHost);
  const RaggedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.q.View(OnHost);
  const TokenView k = fixture.k.View(OnHost);
  const TokenView v = fixture.v.View(OnHost);
  const DType products = ProductsOf(q.dtype, k.dtype);
  CheckFixture(fixture, ReferenceRaggedAttention<double>(layer, batch, q, k, v),
               ReferenceRaggedAttention<float>(layer, batch, q, k, v, RoundingOf(products)),
               products, SharedPrefix::kIgnored, random, totals);
}

using CheckFunction = void (*)(const FixtureOptions&, Random&, ErrorTotals&);

// `rounds` fixtures of each dtype.
void CheckMany(CheckFunction check, int rounds, uint64_t seed) {
  for (DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    Random random(seed);
    ErrorTotals totals;
    for (int round = 0; round < rounds; ++round) {
      const uint64_t fixture_seed = random.Bits();
      check(OptionsOfRound(fixture_seed, dtype, random), random, totals);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
    ::testing::Test::RecordProperty(std::string(DTypeName(dtype)),
                                    std::to_string(totals.OutRatio()));
    std::cout << "error of " << dtype << " over that of the same maths: " << totals.OutRatio()
              << "\n";
  }
}

TEST_F(AttentionGpuTest, AnyPagedBatchAgreesWithTheReference) {
  CheckMany(CheckPaged, 1100, kSeed);
}

TEST_F(AttentionGpuTest, AnyRaggedBatchAgreesWithTheReference) {
  CheckMany(CheckRagged, 300, kSeed + 1);
}

TEST_F(AttentionGpuTest, LongRowsAgreeWithTheReference) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Random random(kSeed + 2);
    ErrorTotals totals;
    for (int round = 0; round < 20; ++round) {
      CheckPaged({.seed = random.Bits(),
                  .max_rows = 3,
                  .max_query_len = random.Pick({1, 70}),
                  .max_seq_len = 3000,
                  .q_dtype = dtype,
                  .kv_dtype = DrawKvType(dtype, random),
                  .num_kv_heads = 1,
                  .group_size = random.Pick({1, 4, 5}),
                  .head_dim_qk = random.Pick({16, 64})},
                 random, totals);
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
  }
}

// Keys that all rows have in common are read once for several of them.
TEST_F(AttentionGpuTest, SharedPrefixesAgreeWithTheReference) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Random random(kSeed + 5);
    ErrorTotals totals;
    for (int round = 0; round < 100; ++round) {
      CheckPaged(
          {.seed = random.Bits(),
           .allowed = FeatureSet::All().Without({Feature::kWindow, Feature::kContextParallel}),
           .required = {Feature::kCommonPrefix},
           .max_rows = random.Pick({3, 20}),
           .max_query_len = random.Pick({1, 5}),
           .min_seq_len = 150,
           .max_seq_len = 400,
           .q_dtype = dtype,
           .kv_dtype = DrawKvType(dtype, random),
           .num_kv_heads = 1,
           .group_size = random.Pick({1, 4, 5}),
           .head_dim_qk = random.Pick({16, 64})},
          random, totals);
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
  }
}

TEST_F(AttentionSmallGpuTest, PagedAndRaggedBatchesAgreeWithTheReference) {
  CheckMany(CheckPaged, 12, kSeed + 3);
  CheckMany(CheckRagged, 4, kSeed + 4);
}

TEST_F(AttentionSmallGpuTest, RefusesWhatItCannotDoBeforeAnyLaunch) {
  const FixtureOptions options = {.seed = 1,
                                  .allowed = FeatureSet(),
                                  .q_dtype = DType::kBFloat16,
                                  .kv_dtype = DType::kBFloat16,
                                  .head_dim_qk = 64};
  const PagedFixture fixture = MakePagedFixture(options);
  GpuMemory memory;
  const PagedBatch batch = fixture.Batch(memory.Placement());
  AttentionParams layer = fixture.Layer(memory.Placement());
  KvLayer kv = fixture.Kv(memory.Placement());
  const at::Tensor q = TensorOf(fixture.Q(memory.Placement()), batch.num_tokens, layer.num_q_heads,
                                layer.head_dim_qk);
  GpuAttention gpu(fixture, {});
  at::Tensor out = gpu.out();
  const auto message = [&](const WorkMap& work) {
    return std::string(PagedAttentionCuda(layer, batch, work, q, kv, out, nullptr).message());
  };
  EXPECT_THAT(message(WorkMap{}), HasSubstr("make one with PlanWorkMap()"));
  WorkMap other = gpu.work().map();
  other.num_q_heads += 1;
  EXPECT_THAT(message(other), HasSubstr("num_q_heads"));
  other = gpu.work().map();
  other.max_rows = batch.num_rows - 1;
  EXPECT_THAT(message(other), HasSubstr("num_rows"));
  kv.dtype = DType::kFloat16;
  EXPECT_THAT(message(gpu.work().map()), HasSubstr("supported are KV of q's type, of fp8"));
}

}  // namespace
}  // namespace reprise
