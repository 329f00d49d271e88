// The schedule built on the device is bitwise identical to the schedule built on the host.

#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/testing/batch_generator.h"
#include "reprise/attention/testing/gpu_memory.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/testing/ragged_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"

namespace reprise {
namespace {

constexpr uint64_t kSeed = 5;

class TileScheduleGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!HasGpu()) GTEST_SKIP() << "no GPU on this machine";
  }
};

class TileScheduleSmallGpuTest : public TileScheduleGpuTest {};

template <typename T>
std::vector<T> ToHost(const T* device, int64_t count) {
  std::vector<T> host(count);
  EXPECT_EQ(cudaMemcpy(host.data(), device, count * sizeof(T), cudaMemcpyDefault), cudaSuccess);
  return host;
}

// Compares bytes.
template <typename T>
void ExpectSame(const char* what, const T* device, const T* host, int64_t count) {
  const std::vector<T> got = ToHost(device, count);
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &host[i], sizeof(T)), 0) << what << " " << i;
  }
}

void ExpectSameMap(const KernelSchedule& device, const KernelSchedule& host) {
  ExpectSame("count", device.counts, host.counts, kNumMapCounts);
  ExpectSame("queue", device.queue_items, host.queue_items, host.num_queues + 1);
  const std::vector<WorkItem> first = ToHost(device.queue_first, device.num_queues);
  for (int c = 0; c < host.num_queues; ++c) {
    if (host.counts[2] > 0 || host.queue_items[c] == host.queue_items[c + 1]) continue;
    ASSERT_TRUE(first[c] == host.queue_first[c]) << "first item of queue " << c;
  }
  if (host.counts[2] > 0) {
    ExpectSame("dealt item", device.deal_order, host.deal_order, host.counts[2]);
    const int num_first = (host.num_ctas - 1) / host.heads_per_queue + 1;
    for (int rank = 0; rank < std::min(num_first, host.counts[2]); ++rank) {
      ASSERT_TRUE(ToHost(device.queue_first + rank, 1)[0] == host.queue_first[rank]) << rank;
    }
  }
  ExpectSame("item", device.items, host.items, host.counts[0]);
  ExpectSame("merge", device.merges, host.merges, host.counts[1]);
  ExpectSame("arrivals", device.arrivals, host.arrivals,
             static_cast<int64_t>(host.counts[1]) * host.num_head_tiles);
}

template <typename Batch>
void CompareTwins(const Batch& host_batch, const Batch& gpu_batch, const AttentionParams& layer,
                  Random& random) {
  TileScheduleOptions options = {
      .num_q_heads = layer.num_q_heads,
      .num_kv_heads = layer.num_kv_heads,
      .head_dim_qk = layer.head_dim_qk,
      .head_dim_v = layer.head_dim_v,
      .max_rows = host_batch.num_rows,
      .max_tokens = host_batch.num_tokens,
      .max_query_len = std::max(1, host_batch.max_query_len) * random.Pick({1, 30}),
      .max_seq_len = host_batch.max_seq_len,
      .device = {.num_sms = random.Pick({1, 3, 132})},
      .row_assignment = random.Pick({RowAssignment::kByBatch, RowAssignment::kByRow})};
  const int kind = random.Int(0, 2);
  if (kind == 1) {
    options.mode = TileScheduleMode::kDeterministic;
    options.decode_query_len = random.Pick({1, 5, 17});
  }
  if (kind == 2) options.shared_prefix = SharedPrefix::kTaken;
  HostTileSchedule host(options);
  GpuTileSchedule gpu(options);
  const LayerWindow window = WindowOf(layer);
  ASSERT_TRUE(TileScheduleOnHost(host_batch, window, host.schedule()).ok());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  ASSERT_TRUE(LaunchTileSchedule(gpu_batch, window, gpu.schedule(), stream).ok());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ExpectSameMap(gpu.schedule().main, host.schedule().main);
  ASSERT_EQ(gpu.schedule().has_short_rows(), host.schedule().has_short_rows());
  if (host.schedule().has_short_rows())
    ExpectSameMap(gpu.schedule().short_rows, host.schedule().short_rows);
}

void ComparePaged(uint64_t seed, Random& random) {
  const bool long_rows = random.OneIn(2);
  const PagedFixture fixture = MakePagedFixture({.seed = seed,
                                                 .max_rows = random.Pick({1, 6, 40}),
                                                 .max_query_len = random.Pick({1, 12, 80}),
                                                 .min_seq_len = long_rows ? 300 : 1,
                                                 .max_seq_len = long_rows ? 700 : 40,
                                                 .num_kv_heads = 1,
                                                 .head_dim_qk = 16,
                                                 .head_dim_v = 16});
  SCOPED_TRACE(fixture.description);
  GpuMemory memory;
  CompareTwins(fixture.Batch(OnHost), fixture.Batch(memory.Placement()), fixture.Layer(OnHost),
               random);
}

TEST_F(TileScheduleGpuTest, PagedFixturesMatchTheHostSchedule) {
  Random random(kSeed);
  for (int round = 0; round < 300 && !HasFatalFailure(); ++round)
    ComparePaged(random.Bits(), random);
}

TEST_F(TileScheduleSmallGpuTest, PagedFixturesMatchTheHostSchedule) {
  Random random(kSeed + 1);
  for (int round = 0; round < 10 && !HasFatalFailure(); ++round)
    ComparePaged(random.Bits(), random);
}

TEST_F(TileScheduleGpuTest, RaggedFixturesMatchTheHostSchedule) {
  Random random(kSeed + 2);
  for (int round = 0; round < 100 && !HasFatalFailure(); ++round) {
    const RaggedFixture fixture = MakeRaggedFixture(
        {.seed = random.Bits(), .max_query_len = 40, .max_seq_len = 300, .head_dim_qk = 16});
    SCOPED_TRACE(fixture.description);
    GpuMemory memory;
    CompareTwins(fixture.Batch(OnHost), fixture.Batch(memory.Placement()), fixture.Layer(OnHost),
                 random);
  }
}

// A batch with its lengths in device memory.
PagedBatch OnGpu(const PagedBatch& host, GpuMemory& memory) {
  const size_t num_rows = host.num_rows;
  PagedBatch gpu = host;
  gpu.query_start_loc =
      static_cast<int32_t*>(memory.Copy(host.query_start_loc, (num_rows + 1) * sizeof(int32_t)));
  gpu.seq_lens = static_cast<int32_t*>(memory.Copy(host.seq_lens, num_rows * sizeof(int32_t)));
  return gpu;
}

// More rows, Q tiles and items than a CTA has threads, and than fit into shared memory.
TEST_F(TileScheduleGpuTest, AnyNumberOfRowsMatchesTheHostSchedule) {
  Random random(kSeed + 3);
  for (int num_rows : {0, 1, 1, 1, 2, 31, 128, 129, 256, 1023, 1024, 1025, 1500, 5000}) {
    for (int max_query_len : {1, 4, 5, 300}) {
      SCOPED_TRACE(std::to_string(num_rows) + " rows of " + std::to_string(max_query_len));
      std::vector<int32_t> query_start_loc = {0};
      std::vector<int32_t> seq_lens;
      const int longest = random.Pick({500, 131072});
      for (int r = 0; r < num_rows; ++r) {
        query_start_loc.push_back(query_start_loc.back() + random.Int(0, max_query_len));
        seq_lens.push_back(random.OneIn(5) ? 0 : random.Int(0, longest));
      }
      const PagedBatch host = {.query_start_loc = query_start_loc.data(),
                               .seq_lens = seq_lens.data(),
                               .num_rows = num_rows,
                               .num_tokens = query_start_loc.back(),
                               .max_query_len = max_query_len,
                               .max_seq_len = longest};
      AttentionParams layer;
      layer.num_kv_heads = random.Pick({1, 8});
      layer.num_q_heads = layer.num_kv_heads * 4;
      layer.head_dim_qk = layer.head_dim_v = 128;
      if (random.OneIn(2)) layer.window_left = 1000;
      GpuMemory memory;
      CompareTwins(host, OnGpu(host, memory), layer, random);
    }
  }
}

// Builds the schedule of `of_host`, which has these options, on the host and on the device.
void ExpectTheMapOfTheHost(const PagedBatch& host, const TileScheduleOptions& options,
                           HostTileSchedule& of_host) {
  GpuMemory memory;
  GpuTileSchedule of_gpu(options);
  ASSERT_TRUE(TileScheduleOnHost(host, {}, of_host.schedule()).ok());
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  ASSERT_TRUE(LaunchTileSchedule(OnGpu(host, memory), {}, of_gpu.schedule(), stream).ok());
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ExpectSameMap(of_gpu.schedule().main, of_host.schedule().main);
}

// Queues of unsplit Q tiles: rows of similar lengths, and padded rows, in one round of the CTA's
// threads and in several.
TEST_F(TileScheduleGpuTest, UnsplitTilesMatchTheHostSchedule) {
  Random random(kSeed + 5);
  int num_whole = 0;
  for (const int live : {30, 64, 65, 128, 250, 1100, 3000}) {
    for (const int longest : {700, 1024, 60000}) {
      SCOPED_TRACE(std::to_string(live) + " rows of " + std::to_string(longest));
      const int num_rows = live + random.Pick({0, 0, 7, 40});
      std::vector<int32_t> query_start_loc = {0};
      std::vector<int32_t> seq_lens;
      for (int r = 0; r < num_rows; ++r) {
        query_start_loc.push_back(r + 1);
        seq_lens.push_back(r < live ? longest - random.Int(0, 40) : 0);
      }
      const PagedBatch host = {.query_start_loc = query_start_loc.data(),
                               .seq_lens = seq_lens.data(),
                               .num_rows = num_rows,
                               .num_tokens = num_rows,
                               .max_query_len = 1,
                               .max_seq_len = longest};
      const TileScheduleOptions options = {.num_q_heads = 32,
                                           .num_kv_heads = 8,
                                           .head_dim_qk = 128,
                                           .head_dim_v = 128,
                                           .max_rows = num_rows,
                                           .max_tokens = num_rows,
                                           .max_seq_len = longest};
      HostTileSchedule of_host(options);
      ASSERT_NO_FATAL_FAILURE(ExpectTheMapOfTheHost(host, options, of_host));
      const KernelSchedule& schedule = of_host.schedule().main;
      num_whole += num_rows > schedule.num_queues && schedule.counts[1] == 0;
    }
  }
  EXPECT_GE(num_whole, 8);
}

// Prompts with round-robin Q tiles: fewer Q tiles than a warp has threads, and more than shared
// memory holds; Q tiles of equal length, and of more lengths than there are buckets.
TEST_F(TileScheduleGpuTest, RoundRobinTilesMatchTheHostSchedule) {
  Random random(kSeed + 4);
  int num_dealt = 0;
  int num_both_ways = 0;
  TileScheduleCosts costs = H200Profile().tile_schedule;
  costs.joined_steps = 1 << 16;  // decodes are in the same schedule
  for (int round = 0; round < 60 && !HasFatalFailure(); ++round) {
    const int num_rows = random.Int(1, random.Pick({1, 4, 60}));
    const int longest_query = random.Pick({64, 700, 2048, 9000});
    const bool has_decodes = random.OneIn(2);
    const int longest_before = has_decodes ? 3000 : random.Pick({0, 0, 5000, 60000});
    SCOPED_TRACE(std::to_string(num_rows) + " rows of up to " + std::to_string(longest_query));
    std::vector<int32_t> query_start_loc = {0};
    std::vector<int32_t> seq_lens;
    for (int r = 0; r < num_rows; ++r) {
      const int query_len = has_decodes && random.OneIn(2) ? 1
                            : random.OneIn(3)              ? longest_query
                                                           : random.Int(0, longest_query);
      query_start_loc.push_back(query_start_loc.back() + query_len);
      seq_lens.push_back(query_len + random.Int(0, longest_before));
    }
    const PagedBatch host = {.query_start_loc = query_start_loc.data(),
                             .seq_lens = seq_lens.data(),
                             .num_rows = num_rows,
                             .num_tokens = query_start_loc.back(),
                             .max_query_len = longest_query,
                             .max_seq_len = longest_query + longest_before};
    const int num_kv_heads = random.Pick({1, 4, 8});
    const TileScheduleOptions options = {.num_q_heads = num_kv_heads * random.Pick({1, 4, 7}),
                                         .num_kv_heads = num_kv_heads,
                                         .head_dim_qk = 128,
                                         .head_dim_v = 128,
                                         .max_rows = host.num_rows,
                                         .max_tokens = host.num_tokens,
                                         .max_query_len = host.max_query_len,
                                         .max_seq_len = host.max_seq_len,
                                         .costs = costs};
    HostTileSchedule of_host(options);
    ASSERT_NO_FATAL_FAILURE(ExpectTheMapOfTheHost(host, options, of_host));
    num_dealt += of_host.schedule().main.counts[2] > 0;
    num_both_ways += of_host.schedule().main.counts[3];
  }
  EXPECT_GE(num_dealt, 20);
  EXPECT_GE(num_both_ways, 1);
}

}  // namespace
}  // namespace reprise
