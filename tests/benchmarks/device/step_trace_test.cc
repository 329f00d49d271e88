#include "tests/benchmarks/device/step_trace.h"

#include "gtest/gtest.h"

namespace reprise {
namespace {

using Kind = DeviceEvent::Kind;

// Three steps of 10 us: refill 0..1, product 2..6, product 6..7, an unknown kernel 6.5..8, idle to
// 10.
DeviceTrace ThreeSteps() {
  DeviceTrace trace;
  for (int step = 0; step < 3; ++step) {
    const double t = 10.0 * step;
    trace.events.push_back({Kind::kKernel, "RefillKernel", t, 1});
    trace.events.push_back({Kind::kKernel, "nvjet_a", t + 2, 4});
    trace.events.push_back({Kind::kKernel, "nvjet_b", t + 6, 1});
    trace.events.push_back({Kind::kKernel, "mystery", t + 6.5, 1.5});
  }
  trace.runtime_calls = {{"cudaGraphLaunch", 3}, {"cudaLaunchKernel", 6}};
  return trace;
}

TEST(StepTraceTest, AddsTimesByClassAndGapsApart) {
  const auto parts = SplitSteps(ThreeSteps());
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_DOUBLE_EQ(parts->step_us, 10);
  EXPECT_DOUBLE_EQ(parts->class_us[static_cast<int>(KernelClass::kProducts)], 4 + 1);
  EXPECT_DOUBLE_EQ(parts->class_us[static_cast<int>(KernelClass::kRefill)], 1);
  EXPECT_DOUBLE_EQ(parts->other_us.at("mystery"), 1.5);
  EXPECT_DOUBLE_EQ(parts->gap_within_us, 1);   // 1..2; the overlap is not a gap
  EXPECT_DOUBLE_EQ(parts->gap_between_us, 2);  // 8..10
  EXPECT_DOUBLE_EQ(parts->kernels, 4);
}

TEST(StepTraceTest, CountsCallsPerStepOverAllSteps) {
  const auto parts = SplitSteps(ThreeSteps());
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_DOUBLE_EQ(parts->calls.at("cudaGraphLaunch"), 1);
  EXPECT_DOUBLE_EQ(parts->calls.at("cudaLaunchKernel"), 2);
}

TEST(StepTraceTest, RefusesATraceWithoutSteps) {
  EXPECT_EQ(SplitSteps({}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
