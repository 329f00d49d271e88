#include "tests/benchmarks/device/step_trace.h"

#include <map>
#include <string>

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

// A layer's products by their places, the head's in two kernels; kernels that start while others
// run count from the end of those.
TEST(StepTraceTest, TablesKernelsByWhatTheyDo) {
  DeviceTrace trace;
  for (int step = 0; step < 3; ++step) {
    double t = 100.0 * step;
    // Each starts 1 us before the one before ends.
    const auto add = [&](const char* name, double us) {
      trace.events.push_back({Kind::kKernel, name, t, us});
      t += us - 1;
    };
    add("RefillKernel", 3);
    for (int layer = 0; layer < 2; ++layer) {
      add("RmsNormKernel", 2);
      add("void reprise::(anonymous namespace)::SkinnyLinearKernel<__half, float>(a::B)", 5);
      add("RotaryWriteKvKernel", 2);
      add("AttentionKernel", 4);
      add("nvjet_o", 6);
      add("RmsNormKernel", 2);
      add("nvjet_up", 9);
      add("ElementwiseKernel", 2);
      add("nvjet_down", 8);
    }
    add("GatherRowsKernel", 2);
    add("void cublasLt::gemm_head<1>(int)", 11);
    add("void cublasLt::splitKreduce_kernel<1>(int)", 3);
    add("SampleKernel", 2);
  }
  const auto parts = SplitSteps(trace);
  ASSERT_TRUE(parts.ok()) << parts.status();
  struct Expected {
    const char* part;
    const char* name;
    double count, us;
  };
  const Expected expected[] = {
      {"refill", "RefillKernel", 1, 3},       {"norm", "RmsNormKernel", 4, 4},
      {"qkv", "SkinnyLinearKernel", 2, 8},    {"rotary_write", "RotaryWriteKvKernel", 2, 2},
      {"attention", "AttentionKernel", 2, 6}, {"o", "nvjet_o", 2, 10},
      {"gate_up", "nvjet_up", 2, 16},         {"activation", "ElementwiseKernel", 2, 2},
      {"down", "nvjet_down", 2, 14},          {"gather", "GatherRowsKernel", 1, 1},
      {"head", "gemm_head", 2, 12},           {"sampling", "SampleKernel", 1, 1}};
  ASSERT_EQ(parts->by_kernel.size(), std::size(expected));
  double sum = parts->gap_within_us + parts->gap_between_us;
  for (size_t i = 0; i < std::size(expected); ++i) {
    const StepKernel& kernel = parts->by_kernel[i];
    EXPECT_EQ(kernel.part, expected[i].part);
    EXPECT_EQ(kernel.name, expected[i].name);
    EXPECT_DOUBLE_EQ(kernel.count, expected[i].count) << kernel.part;
    EXPECT_DOUBLE_EQ(kernel.us, expected[i].us) << kernel.part;
    sum += kernel.us;
  }
  EXPECT_DOUBLE_EQ(sum, parts->step_us);
}

TEST(StepTraceTest, AGatedProductIsTheFirstBetweenTwoNorms) {
  DeviceTrace trace;
  for (int step = 0; step < 3; ++step) {
    double t = 100.0 * step;
    for (const char* name :
         {"RefillKernel", "AttentionKernel", "nvjet_o", "RmsNormKernel", "TileLinearKernel",
          "nvjet_down", "splitKreduce", "RmsNormKernel", "nvjet_head", "SampleKernel"}) {
      trace.events.push_back({Kind::kKernel, name, t, 1});
      t += 1;
    }
  }
  const auto parts = SplitSteps(trace);
  ASSERT_TRUE(parts.ok()) << parts.status();
  std::map<std::string, double> counts;
  for (const StepKernel& kernel : parts->by_kernel)
    counts[std::string(kernel.part)] += kernel.count;
  EXPECT_DOUBLE_EQ(counts["o"], 1);
  EXPECT_DOUBLE_EQ(counts["gate_up"], 1);
  EXPECT_DOUBLE_EQ(counts["down"], 2);
  EXPECT_DOUBLE_EQ(counts["head"], 1);
}

TEST(StepTraceTest, AProductWithoutNeighboursIsAProduct) {
  const auto parts = SplitSteps(ThreeSteps());
  ASSERT_TRUE(parts.ok()) << parts.status();
  ASSERT_EQ(parts->by_kernel.size(), 3u);
  EXPECT_EQ(parts->by_kernel[1].part, "products");
  EXPECT_DOUBLE_EQ(parts->by_kernel[1].count, 2);
  EXPECT_DOUBLE_EQ(parts->by_kernel[1].us, 5);
  EXPECT_EQ(parts->by_kernel[2].part, "other");
  EXPECT_DOUBLE_EQ(parts->by_kernel[2].us, 1);  // 7..8
}

TEST(StepTraceTest, RefusesATraceWithoutSteps) {
  EXPECT_EQ(SplitSteps({}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace reprise
