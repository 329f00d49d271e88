// Tests decodes whose KV splits are combined in clusters
// (attention/cuda/decode/cluster_combine.cuh): clusters of 2 to 8 CTAs, Q tiles with and without a
// split in every CTA, empty rows and windows, in graphs whose contents change. Small, for
// compute-sanitizer.

#include <array>
#include <cstdint>

#include "gtest/gtest.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/cross_product.h"
#include "reprise/attention/testing/gpu_check.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/base/dtype.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 13;

class AttentionClusterSmallGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }

  // The size of the clusters that combine the fixture's splits; 1: no clusters.
  static int ClusterOfFixture(const PagedFixture& fixture, DType q_dtype) {
    const PagedBatch batch = fixture.Batch(OnHost);
    const AttentionParams layer = fixture.Layer(OnHost);
    HostTileSchedule work(OptionsFor(batch, layer, q_dtype));
    EXPECT_TRUE(TileScheduleOnHost(batch, WindowOf(layer), work.schedule()).ok());
    const KernelSchedule& schedule = work.schedule().main;
    if (schedule.counts[1] == 0 || schedule.counts[4] == 0) return 1;
    return ClusterOf(schedule, batch.num_rows, layer.window_left.value_or(-1));
  }

  // Runs a case eagerly and in a replayed graph, and compares both with the reference.
  void Check(const CrossProductCase& c) {
    ExpectNoFault(c, [&](const ExpectedPair<PagedFixture>& expected, const GpuOutcome&) {
      ++num_of_cluster_[ClusterOfFixture(expected.first.fixture, *c.fixture.q_dtype)];
      ++num_of_cluster_[ClusterOfFixture(expected.second.fixture, *c.fixture.q_dtype)];
    });
  }

  void CheckMany(DType q_dtype, DType kv_dtype, int max_rows, int max_seq_len, int rounds,
                 uint64_t seed) {
    Random random(seed);
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
      const int group = random.Pick({1, 4, 7, 8, 16});
      CrossProductCase c;
      c.fixture = {.seed = random.Bits(),
                   .allowed = DirectFeatures().Without({Feature::kCommonPrefix}),
                   .max_rows = max_rows,
                   .max_query_len = random.OneIn(3) ? 16 / group : 1,
                   .min_seq_len = max_seq_len / 2,
                   .max_seq_len = max_seq_len,
                   .q_dtype = q_dtype,
                   .kv_dtype = kv_dtype,
                   .num_kv_heads = random.Pick({1, 2}),
                   .group_size = group,
                   .head_dim_qk = random.Pick({32, 64, 96, 128})};
      c.products = IsFp8(kv_dtype) ? DType::kFloat16 : q_dtype;
      c.out.dtype = random.OneIn(4) ? DType::kFloat32 : q_dtype;
      Check(c);
    }
  }

  std::array<int, kMaxClusterQueues + 1> num_of_cluster_ = {};
};

TEST_F(AttentionClusterSmallGpuTest, CombinedSplitsMatchTheReference) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    CheckMany(dtype, dtype, 4, 250, 8, kSeed);
    CheckMany(dtype, dtype, 4, 500, 8, kSeed + 1);
    CheckMany(dtype, dtype, 3, 1000, 6, kSeed + 2);
    for (const int max_seq_len : {380, 630, 760, 890}) {
      CheckMany(dtype, dtype, 4, max_seq_len, 5, kSeed + max_seq_len);
    }
  }
  for (int cluster = 2; cluster <= kMaxClusterQueues; ++cluster) {
    EXPECT_GE(num_of_cluster_[cluster], 4) << cluster;
  }
}

TEST_F(AttentionClusterSmallGpuTest, Fp8CachesMatchTheReference) {
  for (const DType kv_dtype : {DType::kFp8E4M3, DType::kFp8E5M2}) {
    CheckMany(DType::kBFloat16, kv_dtype, 4, 400, 6, kSeed + 3);
    CheckMany(DType::kFloat16, kv_dtype, 2, 1000, 3, kSeed + 4);
  }
  int num_in_clusters = 0;
  for (int cluster = 2; cluster <= kMaxClusterQueues; ++cluster) {
    num_in_clusters += num_of_cluster_[cluster];
  }
  EXPECT_GE(num_in_clusters, 10);
}

}  // namespace
}  // namespace reprise
