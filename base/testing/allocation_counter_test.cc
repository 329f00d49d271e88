#include "reprise/base/testing/allocation_counter.h"

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace reprise {
namespace {

struct alignas(256) Aligned {
  char bytes[256];
};

TEST(AllocationCounterTest, CountsEveryFormOfNew) {
  AllocationCounter allocations;
  auto one = std::make_unique<int>(1);
  EXPECT_EQ(allocations.count(), 1);
  auto array = std::make_unique<int[]>(100);
  EXPECT_EQ(allocations.count(), 2);
  auto aligned = std::make_unique<Aligned>();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned.get()) % 256, 0u);
  EXPECT_EQ(allocations.count(), 3);
  std::string text(1000, 'x');
  EXPECT_EQ(allocations.count(), 4);
  std::unique_ptr<int[]> nothrow(new (std::nothrow) int[100]);
  EXPECT_EQ(allocations.count(), 5);
}

TEST(AllocationCounterTest, ReusedMemoryIsNoAllocation) {
  std::vector<int> values(100);
  AllocationCounter allocations;
  values.clear();
  values.resize(100);
  EXPECT_EQ(allocations.count(), 0);
}

TEST(AllocationCounterTest, OtherThreadsDoNotCount) {
  AllocationCounter start;
  std::thread other([] { std::vector<int> values(100); });
  const int64_t after_start = start.count();  // allocations of std::thread itself
  other.join();
  EXPECT_EQ(start.count(), after_start);
}

}  // namespace
}  // namespace reprise
