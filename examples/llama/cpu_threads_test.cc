#include "examples/llama/cpu_threads.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(CpuThreadsTest, ASmallModelIsWorthOne) {
  EXPECT_EQ(SensibleCpuThreads(0, 64), 1);
  EXPECT_EQ(SensibleCpuThreads(13 * kMiB, 64), 1);
}

TEST(CpuThreadsTest, ThreadsGrowWithTheWeightsUpToThoseThereAre) {
  EXPECT_EQ(SensibleCpuThreads(64 * kMiB, 64), 4);
  EXPECT_EQ(SensibleCpuThreads(64 * kMiB, 2), 2);
  EXPECT_EQ(SensibleCpuThreads(16 * 1024 * kMiB, 64), 64);
}

TEST(CpuThreadsTest, ThereIsAlwaysOne) { EXPECT_EQ(SensibleCpuThreads(1024 * kMiB, 0), 1); }

}  // namespace
}  // namespace reprise
