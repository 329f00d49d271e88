// Tests Q tiles with more splits than kMaxSplitsAtOnce, eagerly and in a graph that is replayed
// over different contents, against the float64 reference. Decode kernels combine up to
// kMaxJointSplits splits cooperatively. All other combines of these tests have two levels
// (attention/cuda/general/partial_combine.cuh). Each test checks the number of splits.

#include <cstdint>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/gpu_check.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

using ::testing::StartsWith;

// One or two rows of at least 15,000 keys over the CTA queues of 132 SMs. The seed is chosen so
// that the rows of all rounds have enough splits, in the eager run and in the replay.
struct Rows {
  std::string kernel;  // prefix of the kernel's name
  uint64_t seed = 0;
  int rounds = 2;
  FeatureSet without = {};
  FeatureSet required = {};
  DType q_dtype = DType::kBFloat16;
  DType kv_dtype = DType::kBFloat16;
  KvMemoryLayout layout = KvMemoryLayout::kNhd;
  int max_query_len = 1;
  int group_size = 4;
  int head_dim_qk = 64;
  int head_dim_v = 64;
  int min_seq_len = 15000;
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
};

// All features, except rows.without, features that leave a row only few keys, and features that may
// select another kernel.
FeatureSet AllowedOf(const Rows& rows) {
  FeatureSet allowed = FeatureSet::All().Without(
      {Feature::kWindow, Feature::kCustomMask, Feature::kNewKeys, Feature::kPaddedRows,
       Feature::kDifferentV, Feature::kOddHeadDim, Feature::kUnalignedQ});
  for (int f = 0; f < static_cast<int>(Feature::kNumFeatures); ++f) {
    if (rows.without.Has(static_cast<Feature>(f))) allowed.Remove(static_cast<Feature>(f));
  }
  return allowed;
}

class AttentionGroupsGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  static void Check(const Rows& rows) {
    Random random(rows.seed);
    for (int round = 0; round < rows.rounds && !HasFatalFailure(); ++round) {
      CrossProductCase c;
      c.fixture = {.seed = random.Bits(),
                   .allowed = AllowedOf(rows),
                   .required = rows.required,
                   .max_rows = 2,
                   .max_query_len = rows.max_query_len,
                   .min_seq_len = rows.min_seq_len,
                   .max_seq_len = rows.min_seq_len + 500,
                   .q_dtype = rows.q_dtype,
                   .kv_dtype = rows.kv_dtype,
                   .layout = rows.layout,
                   .num_kv_heads = 1,
                   .group_size = rows.group_size,
                   .head_dim_qk = rows.head_dim_qk,
                   .head_dim_v = rows.head_dim_v};
      c.products = rows.q_dtype;
      c.out.dtype = random.OneIn(2) ? DType::kFloat32 : rows.q_dtype;
      c.shared_prefix = rows.shared_prefix;
      CheckCase(c, rows.kernel);
    }
  }

 private:
  static void CheckCase(const CrossProductCase& c, const std::string& kernel) {
    ExpectNoFault(c, [&](const ExpectedPair<PagedFixture>&, const GpuOutcome& outcome) {
      EXPECT_THAT(outcome.kernel, StartsWith(kernel));
      EXPECT_GT(outcome.eager_splits, kMaxSplitsAtOnce);
      EXPECT_GT(outcome.replayed_splits, kMaxSplitsAtOnce);
    });
  }
};

TEST_F(AttentionGroupsGpuTest, DecodesAddUpToTheReference) {
  Check({.kernel = "bfloat16.d128.rows16.direct",
         .seed = 7,
         .without = {Feature::kRotary},
         .max_query_len = 3,
         .head_dim_qk = 128,
         .head_dim_v = 128});
  Check({.kernel = "float16.d64.rows16.fp8",
         .seed = 7,
         .without = {Feature::kRotary},
         .q_dtype = DType::kFloat16,
         .kv_dtype = DType::kFp8E4M3,
         .max_query_len = 2});
  Check({.kernel = "bfloat16.d256.rows16.direct",
         .seed = 1,
         .without = {Feature::kRotary},
         .head_dim_qk = 256,
         .head_dim_v = 256});
}

TEST_F(AttentionGroupsGpuTest, ConvertedKeysAddUpToTheReference) {
  Check({.kernel = "float32.d64.rows16.converted",
         .seed = 6,
         .q_dtype = DType::kFloat32,
         .kv_dtype = DType::kFloat32,
         .max_query_len = 3,
         .group_size = 5,
         .min_seq_len = 24000});
}

TEST_F(AttentionGroupsGpuTest, GroupsAreCombinedAfterASharedPrefix) {
  Check({.kernel = "float32.d64.rows16.converted",
         .seed = 4,
         .rounds = 1,
         .without = {Feature::kContextParallel},
         .required = {Feature::kCommonPrefix},
         .q_dtype = DType::kFloat32,
         .kv_dtype = DType::kFloat32,
         .min_seq_len = 30000,
         .shared_prefix = SharedPrefix::kTaken});
}

TEST_F(AttentionGroupsGpuTest, RowsOfDraftsAddUpToTheReference) {
  Check({.kernel = "bfloat16.d64.rows32.direct",
         .seed = 7,
         .without = {Feature::kRotary},
         .max_query_len = 3,
         .group_size = 8,
         .min_seq_len = 25000});
}

TEST_F(AttentionGroupsGpuTest, LatentHeadsAddUpToTheReference) {
  Check({.kernel = "float16.d576.rows64.warpgroup",
         .seed = 1,
         .without = {Feature::kRotary, Feature::kQHeadScales, Feature::kAlibiRows},
         .q_dtype = DType::kFloat16,
         .kv_dtype = DType::kFloat16,
         .layout = KvMemoryLayout::kMla,
         .group_size = 20,
         .head_dim_qk = 576,
         .head_dim_v = 512,
         .min_seq_len = 26000});
  Check({.kernel = "float32.d576.rows16.converted",
         .seed = 3,
         .q_dtype = DType::kFloat32,
         .kv_dtype = DType::kFloat32,
         .layout = KvMemoryLayout::kMla,
         .group_size = 5,
         .head_dim_qk = 576,
         .head_dim_v = 512,
         .min_seq_len = 20000});
}

}  // namespace
}  // namespace reprise
