// Tests the kernels for a few queries per row (KernelFamily::kDecode) in cases with 17 to 32 query
// rows, with one, a few and many splits. Small, for compute-sanitizer.

#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "reprise/attention/testing/attention_error.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/gpu_check.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 11;

class AttentionVerifySmallGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // Runs a case eagerly and in a replayed graph, and compares both with the reference.
  void Check(const CrossProductCase& c) {
    ExpectNoFault(c, [&](const ExpectedPair<PagedFixture>&, const GpuOutcome& outcome) {
      ++num_cases_;
      num_served_ += outcome.kernel.find(".rows32.") != std::string::npos;
      totals_.Add(outcome.eager);
      totals_.Add(outcome.replayed);
    });
  }

  // Checks `rounds` cases with q and KV of these types and up to `max_seq_len` keys per row.
  void CheckMany(DType q_dtype, DType kv_dtype, int rounds, int max_seq_len, uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
      // Number of queries, and of heads per group: 17 to 32 query rows.
      const auto [queries, group] =
          random.Pick({std::pair{5, 4}, std::pair{8, 4}, std::pair{6, 5}, std::pair{1, 20},
                       std::pair{1, 32}, std::pair{20, 1}, std::pair{3, 8}, std::pair{4, 7}});
      CrossProductCase c;
      c.fixture = {.seed = random.Bits(),
                   .allowed = DirectFeatures(),
                   .max_rows = random.Pick({1, 2, 4}),
                   .max_query_len = queries,
                   .min_seq_len = max_seq_len / 4 + 1,
                   .max_seq_len = max_seq_len,
                   .q_dtype = q_dtype,
                   .kv_dtype = kv_dtype,
                   .layout = KvMemoryLayout::kNhd,
                   .num_kv_heads = random.Pick({1, 2}),
                   .group_size = group,
                   .head_dim_qk = random.Pick({32, 64, 96, 128})};
      c.products = IsFp8(kv_dtype) ? DType::kFloat16 : q_dtype;
      c.out.dtype = random.OneIn(4) ? DType::kFloat32 : q_dtype;
      c.num_sms = random.Pick({1, 3, 16, 132});
      if (random.OneIn(4)) c.mode = TileScheduleMode::kDeterministic;
      Check(c);
    }
  }

  // At least a third of the cases must use the 32-row kernels. The capacities of the other cases
  // select other tiles.
  void ExpectServed() const {
    EXPECT_GE(num_served_ * 3, num_cases_) << "of " << num_cases_ << " cases";
    EXPECT_LE(totals_.OutRatio(), 2.0);
  }

  int num_cases_ = 0;
  int num_served_ = 0;
  ErrorTotals totals_;
};

TEST_F(AttentionVerifySmallGpuTest, SmallQueryCountsMatchTheReference) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CheckMany(dtype, dtype, 12, 200, kSeed);
    CheckMany(dtype, dtype, 3, 1500, kSeed + 1);  // many splits
  }
  ExpectServed();
}

TEST_F(AttentionVerifySmallGpuTest, Fp8CachesMatchTheReference) {
  for (const DType kv_dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    CheckMany(DType::kBFloat16, kv_dtype, 6, 200, kSeed + 2);
    CheckMany(DType::kFloat16, kv_dtype, 2, 1500, kSeed + 3);
  }
  ExpectServed();
}

}  // namespace
}  // namespace reprise
