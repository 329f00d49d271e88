#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/runner/slots/refill.h"
#include "reprise/runner/testing/refill_memory.h"

namespace reprise {
namespace {

struct FreeDevice {
  void operator()(std::byte* memory) const { cudaFree(memory); }
};
struct FreePinned {
  void operator()(std::byte* memory) const { cudaFreeHost(memory); }
};

// A refill whose slots and arrays are on the device and whose delta is in mapped memory, and the
// same refill on the host.
class Twins {
 public:
  explicit Twins(const RefillShape& shape)
      : shape_(shape), bytes_(RefillBytes(shape)), host_(shape), downloaded_(shape) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, bytes_), cudaSuccess);
    device_.reset(static_cast<std::byte*>(memory));
    EXPECT_EQ(cudaHostAlloc(&memory, bytes_, cudaHostAllocMapped), cudaSuccess);
    pinned_.reset(static_cast<std::byte*>(memory));
    EXPECT_EQ(cudaMemcpy(device_.get(), host_.base(), bytes_, cudaMemcpyDefault), cudaSuccess);
  }

  RefillArgs& host_args() { return host_.args(); }

  // Runs both refills with the delta of host_args(). Returns the first difference.
  std::string Refill() {
    host_.PoisonArrays();
    RefillArgs args = RefillArgsAt(shape_, device_.get());
    // The arrays are stored between the slots and the delta.
    const auto offset = [&](const void* in_host) {
      return static_cast<const std::byte*>(in_host) - host_.base();
    };
    const ptrdiff_t arrays = offset(host_args().arrays.token_ids);
    const ptrdiff_t delta = offset(host_args().delta.counts);
    EXPECT_EQ(cudaMemcpy(device_.get() + arrays, host_.base() + arrays, delta - arrays,
                         cudaMemcpyDefault),
              cudaSuccess);
    std::memcpy(pinned_.get() + delta, host_.base() + delta, bytes_ - delta);
    const int max_updates = host_args().delta.max_updates;
    args.delta = RefillArgsAt(shape_, pinned_.get()).delta;
    args.delta.max_updates = max_updates;
    args.padded_num_rows = host_args().padded_num_rows;
    args.padded_num_tokens = host_args().padded_num_tokens;
    args.padded_num_earlier_logits = host_args().padded_num_earlier_logits;
    args.has_scored_rows = host_args().has_scored_rows;

    EXPECT_EQ(LaunchRefill(args, nullptr), absl::OkStatus());
    RefillOnHost(host_args());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(downloaded_.base(), device_.get(), bytes_, cudaMemcpyDefault),
              cudaSuccess);
    return FirstDifference(shape_, host_args(), downloaded_.args());
  }

 private:
  RefillShape shape_;
  int64_t bytes_;
  RefillMemory host_;
  RefillMemory downloaded_;
  std::unique_ptr<std::byte, FreeDevice> device_;
  std::unique_ptr<std::byte, FreePinned> pinned_;
};

class RefillGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int num_devices = 0;
    if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
      GTEST_SKIP() << "no GPU on this machine";
    }
  }
};

// Random steps; the delta alternates between reading updates with the counts and after them.
void ExpectAgreement(const RefillShape& shape, double hostility, int num_steps) {
  const uint32_t seed = 11 + static_cast<uint32_t>(100 * hostility);
  SCOPED_TRACE(testing::Message() << shape << ", hostility " << hostility << ", seed " << seed);
  std::mt19937 random(seed);
  Twins twins(shape);
  for (int step = 0; step < num_steps; ++step) {
    RandomDelta(random, shape, hostility, twins.host_args());
    twins.host_args().delta.max_updates = step % 2 == 0 ? shape.max_updates : 0;
    ASSERT_EQ(twins.Refill(), "") << "step " << step;
  }
}

TEST_F(RefillGpuTest, MatchesTheHostOverManyHostileSteps) {
  const RefillShape shapes[] = {
      {},
      {.num_slots = 64,
       .max_blocks = 40,
       .block_size = 1,
       .num_blocks = 4000,
       .max_rows = 64,
       .max_tokens = 200,
       .max_updates = 300},
      {.num_slots = 300,
       .max_blocks = 16,
       .block_size = 16,
       .num_blocks = 9000,
       .max_rows = 256,
       .max_tokens = 5000,
       .max_updates = 1000},
      // More rows than threads.
      {.num_slots = 1500,
       .max_blocks = 6,
       .block_size = 4,
       .num_blocks = 9000,
       .max_rows = 1400,
       .max_tokens = 6000,
       .max_updates = 3000,
       .max_earlier_logits = 3000},
      // Scored rows.
      {.num_slots = 20,
       .max_blocks = 20,
       .block_size = 8,
       .num_blocks = 900,
       .max_rows = 16,
       .max_tokens = 160,
       .max_updates = 300,
       .max_earlier_logits = 100},
      {.num_slots = 200,
       .max_blocks = 16,
       .block_size = 16,
       .num_blocks = 9000,
       .max_rows = 200,
       .max_tokens = 3000,
       .max_updates = 1000,
       .num_position_dims = 3},
      {.num_slots = 256,
       .max_blocks = 16,
       .block_size = 16,
       .num_blocks = 9000,
       .max_rows = 256,
       .max_tokens = 2000,
       .max_updates = 4000,
       .groups = {{},
                  {.retention = KvRetention::kSlidingWindow, .span = 50},
                  {.retention = KvRetention::kChunkedLocal, .span = 40},
                  {.retention = KvRetention::kCross}}},
  };
  for (const RefillShape& shape : shapes) {
    for (double hostility : {0.0, 0.02, 0.3}) ExpectAgreement(shape, hostility, 100);
  }
}

TEST_F(RefillGpuTest, TokensForDraftersMatchTheHost) {
  const RefillShape shapes[] = {
      {.num_blocks = 49, .max_updates = 40, .place_group = 0},
      {.num_slots = 256,
       .max_blocks = 16,
       .block_size = 16,
       .num_blocks = 1 + 256 * 16,
       .max_rows = 256,
       .max_tokens = 2000,
       .max_updates = 4000,
       .groups = {{.retention = KvRetention::kSlidingWindow, .span = 50}, {}},
       .place_group = 1},
  };
  for (const RefillShape& shape : shapes) ExpectAgreement(shape, 0, 100);
}

// A smaller set of cases for compute-sanitizer.
using RefillSmallGpuTest = RefillGpuTest;

TEST_F(RefillSmallGpuTest, MatchesTheHost) {
  const RefillShape shapes[] = {
      {.max_earlier_logits = 20},
      {.groups = {{}, {.retention = KvRetention::kSlidingWindow, .span = 9}},
       .num_position_dims = 3},
  };
  for (const RefillShape& shape : shapes) ExpectAgreement(shape, 0.1, 6);
}

TEST_F(RefillGpuTest, LastOfManyUpdatesOfAnEntryWins) {
  const RefillShape shape = {.max_updates = 1000};
  Twins twins(shape);
  for (int num_updates : {1, 31, 32, 33, 64, 256, 257, 1000}) {
    StepDeltaCounts counts = {.num_updates = num_updates};
    for (int i = 0; i < num_updates; ++i) {
      twins.host_args().delta.updates[i] = {.slot = 3, .column = i % 2, .block = 1 + i % 39};
    }
    *twins.host_args().delta.counts = counts;
    ASSERT_EQ(twins.Refill(), "") << num_updates << " updates";
  }
}

TEST_F(RefillGpuTest, RejectsSizesBeyondTheArrays) {
  Twins twins(RefillShape{});
  RefillArgs args = twins.host_args();
  args.padded_num_rows = args.arrays.max_rows + 1;
  EXPECT_EQ(LaunchRefill(args, nullptr).code(), absl::StatusCode::kInvalidArgument);
  args.padded_num_rows = 1;
  args.slots.num_slots = 1 << 20;  // 4 MiB of claims
  EXPECT_EQ(LaunchRefill(args, nullptr).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace reprise
