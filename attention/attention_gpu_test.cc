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

GpuAttentionOptions DrawOptions(DType q_dtype, Random& random) {
  return {.out_dtype = random.OneIn(3) ? DType::kFloat32 : q_dtype,
          .num_extra_tokens = random.Pick({0, 0, 3}),
          .out_head_gap = random.Pick({0, 0, 4, 3}),
          .out_token_gap = random.Pick({0, 0, 8, 5}),
          .num_sms = random.Pick({1, 3, 132}),
          .mode = random.OneIn(4) ? WorkMapMode::kDeterministic : WorkMapMode::kBalanced};
}

template <typename Fixture>
void CheckFixture(const Fixture& fixture, const ReferenceResult<double>& exact,
                  const ReferenceResult<float>& own, Random& random, ErrorTotals& totals) {
  const DType dtype = fixture.q.dtype;
  const GpuAttentionOptions options = DrawOptions(dtype, random);
  GpuAttention gpu(fixture, options);
  const absl::Status status = gpu.Run();
  ASSERT_TRUE(status.ok()) << status;
  const AttentionError error = ErrorOf(gpu.Values(), exact, own, gpu.layer().head_dim_v, dtype,
                                       options.out_dtype.value_or(dtype));
  ASSERT_EQ(error.wrong, "");
  EXPECT_LE(error.out, error.out_limit);
  EXPECT_LE(error.lse, error.lse_limit);
  EXPECT_EQ(gpu.FaultOutside(), "");
  totals.Add(error);
}

// Weights that the kernel rounds before the second product.
DType WeightType(DType q_dtype) { return q_dtype == DType::kFloat32 ? DType::kFloat64 : q_dtype; }

FixtureOptions OptionsOfRound(uint64_t seed, DType dtype, Random& random) {
  FixtureOptions options = {.seed = seed,
                            .allowed = FeatureSet::All().Without({Feature::kRotary}),
                            .max_query_len = random.Pick({1, 4, 12, 40}),
                            .max_seq_len = random.Pick({20, 80, 80, 300}),
                            .q_dtype = dtype,
                            .kv_dtype = dtype};
  if (random.OneIn(20)) options.group_size = random.Pick({16, 20, 33, 70});
  if (options.max_seq_len == 300 || options.group_size) options.num_kv_heads = 1;
  return options;
}

void CheckPaged(const FixtureOptions& options, Random& random, ErrorTotals& totals) {
  const PagedFixture fixture = MakePagedFixture(options);
  SCOPED_TRACE(fixture.description);
  const AttentionParams layer = fixture.Layer(OnHost);
  const PagedBatch batch = fixture.Batch(OnHost);
  CheckFixture(fixture,
               ReferencePagedAttention<double>(layer, batch, fixture.Q(OnHost), fixture.Kv(OnHost)),
               ReferencePagedAttention<float>(layer, batch, fixture.Q(OnHost), fixture.Kv(OnHost),
                                              WeightType(fixture.q.dtype)),
               random, totals);
}

void CheckRagged(const FixtureOptions& options, Random& random, ErrorTotals& totals) {
  const RaggedFixture fixture = MakeRaggedFixture(options);
  SCOPED_TRACE(fixture.description);
  const AttentionParams layer = fixture.Layer(OnHost);
  const RaggedBatch batch = fixture.Batch(OnHost);
  const TokenView q = fixture.q.View(OnHost);
  const TokenView k = fixture.k.View(OnHost);
  const TokenView v = fixture.v.View(OnHost);
  CheckFixture(fixture, ReferenceRaggedAttention<double>(layer, batch, q, k, v),
               ReferenceRaggedAttention<float>(layer, batch, q, k, v, WeightType(fixture.q.dtype)),
               random, totals);
}

using CheckFunction = void (*)(const FixtureOptions&, Random&, ErrorTotals&);

// `rounds` fixtures of each dtype.
void CheckMany(CheckFunction check, int rounds, uint64_t seed) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
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
                  .allowed = FeatureSet::All().Without({Feature::kRotary}),
                  .max_rows = 3,
                  .max_query_len = random.Pick({1, 70}),
                  .max_seq_len = 3000,
                  .q_dtype = dtype,
                  .kv_dtype = dtype,
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
  kv.dtype = DType::kFp8E4M3;
  EXPECT_THAT(message(gpu.work().map()), HasSubstr("supported are float32, float16 and bfloat16"));
  kv.dtype = DType::kBFloat16;
  layer.rotary = RotaryParams{};
  EXPECT_THAT(message(gpu.work().map()), HasSubstr("rotary"));
}

}  // namespace
}  // namespace reprise
