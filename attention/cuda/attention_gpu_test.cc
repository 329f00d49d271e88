// Compares the attention kernels with the float64 reference on random hostile batches: every field
// of PagedBatch, RaggedBatch, AttentionParams and AttentionExtras, every layout, and schedules with
// any number of splits. Each case runs eagerly and in a captured graph, which is replayed over
// different contents (attention/testing/gpu_check.h).
//
// attention/testing/attention_error.h defines the tolerance: twice the error of the same
// computation in the kernel's precision, per fixture with a lower bound, and over all fixtures
// without a lower bound.

#include <ATen/TensorOperators.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <iostream>
#include <limits>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/cuda/attention_cuda.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/gpu_attention.h"
#include "reprise/attention/testing/gpu_check.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/testing/device_array.h"

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

// The MMA type of the kernels, except fp8 kernels.
DType ProductsOf(DType q_dtype, DType kv_dtype) {
  if (IsFp8(q_dtype)) return kv_dtype == DType::kFloat16 ? kv_dtype : DType::kBFloat16;
  return q_dtype;
}

// Runs a case on the GPU, eagerly and in a replayed graph, and compares it with the reference.
template <typename Fixture>
void Check(FixturePair<Fixture> pair, const CrossProductCase& c, ErrorTotals& totals) {
  const ExpectedPair<Fixture> expected = ExpectedOf(std::move(pair), c);
  SCOPED_TRACE(expected.description());
  const absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected, c);
  ASSERT_TRUE(outcome.ok()) << outcome.status();
  ASSERT_EQ(outcome->fault, "") << outcome->kernel << ", out of " << c.out.dtype;
  totals.Add(outcome->eager);
  totals.Add(outcome->replayed);
}

// A random case for a fixture of these types.
CrossProductCase DrawCase(const FixtureOptions& options, Random& random) {
  CrossProductCase c;
  c.fixture = options;
  c.products = ProductsOf(*options.q_dtype, *options.kv_dtype);
  c.num_extra_tokens = random.Pick({0, 0, 3});
  c.out_gap = random.Pick({0, 0, 4, 3});
  c.num_sms = random.Pick({1, 3, 132});
  c.out.dtype = random.OneIn(3) ? DType::kFloat32 : c.products;
  const int schedule = random.Int(0, 3);
  if (schedule == 0) c.mode = TileScheduleMode::kDeterministic;
  if (schedule == 1) c.shared_prefix = SharedPrefix::kTaken;
  c.max_tier = random.Pick({1, 2, 2});
  return c;
}

// A random cache type that is allowed with q of this type.
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

void CheckPaged(const CrossProductCase& c, ErrorTotals& totals) {
  Check(MakePagedFixturePair(c.fixture), c, totals);
}

void CheckRagged(const CrossProductCase& c, ErrorTotals& totals) {
  CrossProductCase ragged = c;
  ragged.fixture.kv_dtype = c.fixture.q_dtype;
  ragged.products = ProductsOf(*c.fixture.q_dtype, *c.fixture.q_dtype);
  if (c.out.dtype == c.products) ragged.out.dtype = ragged.products;
  Check(MakeRaggedFixturePair(ragged.fixture), ragged, totals);
}

using CheckFunction = void (*)(const CrossProductCase&, ErrorTotals&);

// `rounds` fixtures of each dtype.
void CheckMany(CheckFunction check, int rounds, uint64_t seed) {
  for (DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFp8E4M3, DType::kFp8E5M2}) {
    Random random(seed);
    ErrorTotals totals;
    for (int round = 0; round < rounds; ++round) {
      const uint64_t fixture_seed = random.Bits();
      check(DrawCase(OptionsOfRound(fixture_seed, dtype, random), random), totals);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
    ::testing::Test::RecordProperty(std::string(DTypeName(dtype)),
                                    std::to_string(totals.OutRatio()));
    std::cout << "error of " << dtype << " relative to the same computation: " << totals.OutRatio()
              << "\n";
  }
}

TEST_F(AttentionGpuTest, AnyPagedBatchAgreesWithTheReference) { CheckMany(CheckPaged, 200, kSeed); }

TEST_F(AttentionGpuTest, AnyRaggedBatchAgreesWithTheReference) {
  CheckMany(CheckRagged, 60, kSeed + 1);
}

TEST_F(AttentionGpuTest, LongRowsAgreeWithTheReference) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Random random(kSeed + 2);
    ErrorTotals totals;
    for (int round = 0; round < 20; ++round) {
      const FixtureOptions options = {.seed = random.Bits(),
                                      .allowed = FeatureSet::All(),
                                      .max_rows = 3,
                                      .max_query_len = random.Pick({1, 70}),
                                      .max_seq_len = 3000,
                                      .q_dtype = dtype,
                                      .kv_dtype = DrawKvType(dtype, random),
                                      .num_kv_heads = 1,
                                      .group_size = random.Pick({1, 4, 5}),
                                      .head_dim_qk = random.Pick({16, 64})};
      CheckPaged(DrawCase(options, random), totals);
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
  }
}

// Keys that all rows have in common are read once for several rows.
TEST_F(AttentionGpuTest, SharedPrefixesAgreeWithTheReference) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Random random(kSeed + 5);
    ErrorTotals totals;
    for (int round = 0; round < 100; ++round) {
      CrossProductCase c =
          DrawCase({.seed = random.Bits(),
                    .allowed = FeatureSet::All().Without(
                        {Feature::kWindow, Feature::kContextParallel, Feature::kCustomMask}),
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
                   random);
      c.mode = TileScheduleMode::kBalanced;
      c.shared_prefix = SharedPrefix::kTaken;
      CheckPaged(c, totals);
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
  }
}

// Absorbed MLA over a cache of q's type, with large tiles. The heads of a token are in one, two or
// three tiles, or several tokens are in one tile.
void CheckLatentHeads(int rounds, int max_seq_len, uint64_t seed) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Random random(seed);
    ErrorTotals totals;
    for (int round = 0; round < rounds; ++round) {
      const int group_size = random.Pick({16, 20, 64, 128, 128, 130});
      CrossProductCase c =
          DrawCase({.seed = random.Bits(),
                    .allowed = FeatureSet::All().Without(
                        {Feature::kRotary, Feature::kNewKeys, Feature::kOddHeadDim,
                         Feature::kDifferentV, Feature::kCustomMask, Feature::kQHeadScales}),
                    .max_rows = max_seq_len > 1000 ? 1 : 3,  // to bound the time of the reference
                    .max_query_len = group_size < 64 ? 6 : 2,
                    .min_seq_len = max_seq_len > 1000 ? max_seq_len - 100 : 1,
                    .max_seq_len = max_seq_len,
                    .q_dtype = dtype,
                    .kv_dtype = dtype,
                    .layout = KvMemoryLayout::kMla,
                    .num_kv_heads = 1,
                    .group_size = group_size,
                    .head_dim_qk = 576,
                    .head_dim_v = 512},
                   random);
      CheckPaged(c, totals);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
  }
}

TEST_F(AttentionGpuTest, LatentHeadsAgreeWithTheReference) {
  CheckLatentHeads(20, 300, kSeed + 6);
  CheckLatentHeads(2, 2500, kSeed + 7);  // many splits
}

// MLA with a separate rope tensor, of any type and scale, run eagerly and replayed with different
// scales.
void CheckLatentParts(int rounds, int max_seq_len, uint64_t seed) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    Random random(seed);
    ErrorTotals totals;
    for (int round = 0; round < rounds; ++round) {
      const int group_size = random.Pick({1, 5, 16, 20, 128});
      CrossProductCase c = DrawCase(
          {.seed = random.Bits(),
           .allowed = FeatureSet::All().Without({Feature::kRotary, Feature::kNewKeys}),
           .required = {Feature::kQuantScales},
           .max_rows = 3,
           .max_query_len = group_size < 64 ? 6 : 2,
           .max_seq_len = max_seq_len,
           .q_dtype = dtype,
           .kv_dtype = random.Pick({dtype, DType::kFp8E4M3, DType::kFp8E4M3, DType::kFp8E5M2}),
           .layout = KvMemoryLayout::kMlaParts,
           .num_kv_heads = 1,
           .group_size = group_size,
           .head_dim_qk = 576,
           .head_dim_v = 512},
          random);
      CheckPaged(c, totals);
      if (::testing::Test::HasFatalFailure()) return;
    }
    EXPECT_LE(totals.OutRatio(), 2.0) << dtype;
  }
}

TEST_F(AttentionGpuTest, MlaWithSeparateRopeTensorsMatchesTheReference) {
  CheckLatentParts(16, 300, kSeed + 9);
}

TEST_F(AttentionSmallGpuTest, MlaWithSeparateRopeTensorsMatchesTheReference) {
  CheckLatentParts(2, 150, kSeed + 10);
}

// The tiles that cards of compute capability 8.6 and 8.9 use for prompts with head dims beyond 256.
TEST_F(AttentionGpuTest, LargeHeadDimsMatchTheReferenceInTilesForSmallCards) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    Random random(kSeed + 11);
    for (int round = 0; round < 8; ++round) {
      const int head_dim = random.Pick({320, 512});
      CrossProductCase c =
          DrawCase({.seed = random.Bits(),
                    .max_rows = 3,
                    .max_query_len = 40,
                    .max_seq_len = 150,
                    .q_dtype = dtype,
                    .kv_dtype = random.Pick({dtype, DType::kFp8E4M3}),
                    .layout = random.Pick({KvMemoryLayout::kNhd, KvMemoryLayout::kHnd}),
                    .num_kv_heads = 1,
                    .group_size = random.Pick({1, 4, 20}),
                    .head_dim_qk = head_dim,
                    .head_dim_v = head_dim},
                   random);
      c.max_shared_bytes = 99 * 1024;
      const auto expected = ExpectedOf(MakePagedFixturePair(c.fixture), c);
      SCOPED_TRACE(expected.description());
      const absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected, c);
      ASSERT_TRUE(outcome.ok()) << outcome.status();
      EXPECT_THAT(outcome->kernel, HasSubstr(".d512.rows16."));
      ASSERT_EQ(outcome->fault, "") << outcome->kernel;
    }
  }
}

TEST_F(AttentionSmallGpuTest, LatentHeadsAgreeWithTheReference) {
  CheckLatentHeads(3, 150, kSeed + 8);
}

TEST_F(AttentionSmallGpuTest, PagedAndRaggedBatchesAgreeWithTheReference) {
  CheckMany(CheckPaged, 12, kSeed + 3);
  CheckMany(CheckRagged, 4, kSeed + 4);
}

// Before an engine has blocks, no row has keys. Runs in a graph, which is replayed with different
// q.
TEST_F(AttentionSmallGpuTest, CacheWithoutBlocksServesRowsWithoutKeys) {
  for (const KvMemoryLayout layout : {KvMemoryLayout::kNhd, KvMemoryLayout::kHnd}) {
    for (const int head_dim : {64, 512}) {
      SCOPED_TRACE(testing::Message() << layout << ", head dim " << head_dim);
      PagedFixture fixture = MakePagedFixture({.seed = kSeed + 12,
                                               .allowed = FeatureSet(),
                                               .q_dtype = DType::kBFloat16,
                                               .kv_dtype = DType::kBFloat16,
                                               .layout = layout,
                                               .head_dim_qk = head_dim,
                                               .head_dim_v = head_dim});
      for (int32_t& seq_len : fixture.seq_lens) seq_len = 0;
      GpuMemory memory;
      const PagedBatch batch = fixture.Batch(memory.Placement());
      ASSERT_GT(batch.num_tokens, 0);
      const AttentionParams layer = fixture.Layer(memory.Placement());
      KvLayer kv = fixture.Kv(OnHost);
      kv.num_blocks = 0;
      kv.k.data = kv.v.data = nullptr;
      at::Tensor q = TensorOf(fixture.Q(memory.Placement()), batch.num_tokens, layer.num_q_heads,
                              layer.head_dim_qk);
      GpuAttention gpu(fixture, {});
      at::Tensor out = gpu.out(), lse = gpu.lse();
      CheckCuda(cudaDeviceSynchronize());
      CapturedWork graph([&](cudaStream_t stream) {
        const c10::cuda::CUDAStreamGuard guard(
            c10::cuda::getStreamFromExternal(stream, c10::cuda::current_device()));
        const absl::StatusOr<BatchSchedule> work =
            LaunchTileSchedule(batch, WindowOf(layer), gpu.work().schedule(), stream);
        ASSERT_TRUE(work.ok()) << work.status();
        ASSERT_EQ(PagedAttentionCuda(layer, batch, *work, q, kv, {out, &lse}), absl::OkStatus());
      });
      for (const float value : {1.0f, std::numeric_limits<float>::quiet_NaN()}) {
        q.fill_(value);
        out.fill_(3);
        lse.fill_(3);
        gpu.work().Poison();
        graph.Replay();
        EXPECT_TRUE(out.eq(0).all().item<bool>());
        EXPECT_TRUE(lse.eq(-std::numeric_limits<float>::infinity()).all().item<bool>());
      }
    }
  }
}

TEST_F(AttentionSmallGpuTest, RejectsUnsupportedCallsBeforeAnyLaunch) {
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
  const auto message = [&](const TileSchedule& schedule) {
    const BatchSchedule work = WorkOf(batch, WindowOf(layer), schedule);
    return std::string(PagedAttentionCuda(layer, batch, work, q, kv, {out}).message());
  };
  EXPECT_THAT(message(TileSchedule{}), HasSubstr("make one with PlanTileSchedule()"));
  TileSchedule other = gpu.work().schedule();
  other.main.num_q_heads += 1;
  EXPECT_THAT(message(other), HasSubstr("num_q_heads"));
  other = gpu.work().schedule();
  other.main.max_rows = batch.num_rows - 1;
  EXPECT_THAT(message(other), HasSubstr("num_rows"));
  PagedBatch fewer = batch;
  --fewer.num_rows;
  const BatchSchedule work = WorkOf(batch, WindowOf(layer), gpu.work().schedule());
  const absl::Status refused = PagedAttentionCuda(layer, fewer, work, q, kv, {out});
  EXPECT_THAT(std::string(refused.message()), HasSubstr("work is for another batch"));
  kv.dtype = DType::kFloat16;
  EXPECT_THAT(message(gpu.work().schedule()), HasSubstr("supported are KV in q's type, in fp8"));
}

}  // namespace
}  // namespace reprise
