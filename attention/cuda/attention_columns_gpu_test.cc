// Decodes whose columns have whole query ranges (attention/work_map/work_map.h): more rows than
// columns, of hardly different lengths, in graphs whose contents change. Small, for
// compute-sanitizer.

#include <cstdint>

#include "absl/status/statusor.h"
#include "attention/testing/batch_generator.h"
#include "attention/testing/cross_product.h"
#include "attention/testing/gpu_check.h"
#include "attention/testing/gpu_memory.h"
#include "attention/testing/host_work_map.h"
#include "attention/testing/random.h"
#include "attention/work_map/work_map.h"
#include "attention/work_map/work_map_build.h"
#include "base/dtype.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 17;
constexpr int kSms = 4;

class AttentionColumnsSmallGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // Whether the fixture has columns of several whole ranges each, where filled ones would be cut.
  static bool HasWholeRanges(const PagedFixture& fixture, DType q_dtype) {
    const PagedBatch batch = fixture.Batch(OnHost);
    const AttentionParams layer = fixture.Layer(OnHost);
    WorkMapOptions options = {.dtype = q_dtype,
                              .num_q_heads = layer.num_q_heads,
                              .num_kv_heads = layer.num_kv_heads,
                              .head_dim_qk = layer.head_dim_qk,
                              .head_dim_v = layer.head_dim_v,
                              .max_rows = batch.num_rows,
                              .max_tokens = batch.num_tokens,
                              .max_query_len = batch.max_query_len,
                              .max_seq_len = batch.max_seq_len,
                              .num_sms = kSms};
    const auto num_merges = [&] {
      HostWorkMap work(options);
      EXPECT_TRUE(WorkMapOnHost(batch, WindowOf(layer), work.map()).ok());
      return work.map().main.counts[1];
    };
    if (num_merges() > 0) return false;
    options.costs.whole_ranges_percent = 0;
    return num_merges() > 0;
  }

  // Runs a case eagerly and in a replayed graph, and compares both with the reference.
  void Check(const CrossProductCase& c) {
    const ExpectedPair<PagedFixture> expected = ExpectedOf(MakePagedFixturePair(c.fixture), c);
    SCOPED_TRACE(expected.description());
    const absl::StatusOr<GpuOutcome> outcome = RunOnGpu(expected, c);
    ASSERT_TRUE(outcome.ok()) << outcome.status();
    EXPECT_EQ(outcome->fault, "") << outcome->kernel;
    num_whole_ += HasWholeRanges(expected.first.fixture, *c.fixture.q_dtype);
    num_whole_ += HasWholeRanges(expected.second.fixture, *c.fixture.q_dtype);
  }

  // Of 4 or 8 columns.
  void CheckMany(DType q_dtype, DType kv_dtype, int max_query_len, int rounds, uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
      CrossProductCase c;
      c.num_sms = kSms;
      c.fixture = {.seed = random.Bits(),
                   .allowed = FeatureSet::All().Without(
                       {Feature::kRotary, Feature::kNewKeys, Feature::kOddHeadDim,
                        Feature::kDifferentV, Feature::kUnalignedQ, Feature::kCommonPrefix,
                        Feature::kContextParallel, Feature::kWindow}),
                   .max_rows = 40,
                   .max_query_len = max_query_len,
                   .min_seq_len = 200,
                   .max_seq_len = random.Pick({250, 300}),
                   .q_dtype = q_dtype,
                   .kv_dtype = kv_dtype,
                   .num_kv_heads = random.Pick({1, 2}),
                   .group_size = random.Pick({1, 4}),
                   .head_dim_qk = random.Pick({64, 128})};
      c.products = IsFp8(kv_dtype) ? DType::kFloat16 : q_dtype;
      c.out.dtype = q_dtype;
      Check(c);
    }
  }

  int num_whole_ = 0;
};

TEST_F(AttentionColumnsSmallGpuTest, WholeRangesAttendAsTheReference) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CheckMany(dtype, dtype, 1, 12, kSeed);
    CheckMany(dtype, dtype, 4, 6, kSeed + 1);
  }
  CheckMany(DType::kBFloat16, DType::kFp8E4M3, 1, 8, kSeed + 2);
  EXPECT_GE(num_whole_, 15);
}

}  // namespace
}  // namespace reprise
