// The golden models divided over ranks that are processes, by LibTorch's process groups: gloo on CPUs,
// and with REPRISE_TEST_ON_GPU NCCL on two GPUs. Ranks are forked, so nothing here touches CUDA.

#include <ATen/Parallel.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>

#include "absl/time/time.h"
#include "base/status_macros.h"
#include "distributed/process_group.h"
#include "distributed/testing/rank_reports.h"
#include "gtest/gtest.h"
#include "tests/golden/golden.h"
#include "tests/golden/golden_ranks.h"
#include "tests/golden/golden_runner.h"
#ifdef REPRISE_TEST_ON_GPU
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace reprise {
namespace {

using Mode = GraphSetOptions::Mode;

constexpr double kTolerance = 5e-4;
#ifdef REPRISE_TEST_ON_GPU
constexpr int kWorlds[] = {2};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16};
constexpr char kNoGpus[] = "too few GPUs";
#else
constexpr int kWorlds[] = {2, 4};
constexpr DType kDTypes[] = {DType::kFloat32};
#endif

absl::StatusOr<c10::Device> DeviceOf(const RankPlace& place) {
#ifdef REPRISE_TEST_ON_GPU
  if (c10::cuda::device_count() < place.ranks.world) return absl::NotFoundError(kNoGpus);
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
#else
  static_cast<void>(place);
  at::set_num_threads(1);
  return c10::Device(c10::kCPU);
#endif
}

class GoldenProcessesTest : public testing::TestWithParam<std::tuple<const char*, int, DType>> {};

void CheckOverProcesses(const std::string& name, int world, const DividedGoldenCheck& check) {
  const absl::StatusOr<Golden> golden = LoadGolden(name);
  ASSERT_TRUE(golden.ok()) << golden.status();
  const RankReports reports(
      world,
      [&](const RankPlace& place) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(const c10::Device device, DeviceOf(place));
        REPRISE_ASSIGN_OR_RETURN(const auto collectives, ConnectRanks(place, device));
        REPRISE_RETURN_IF_ERROR(CheckDividedGolden(*golden, *collectives, device, check,
                                                   {.graphs = Mode::kEager, .block_size = 4}));
        DividedGoldenCheck eager = check;
        eager.replays = false;
        return CheckDividedGolden(*golden, *collectives, device, eager,
                                  {.graphs = Mode::kOff, .prefill_chunk = 7});
      },
      absl::Seconds(100));
#ifdef REPRISE_TEST_ON_GPU
  if (reports.of(0) && reports.of(0)->message() == kNoGpus) GTEST_SKIP() << kNoGpus;
#endif
  EXPECT_TRUE(reports.ok()) << reports.status();
}

TEST_P(GoldenProcessesTest, LogitsAreGoldenWithGraphsAndWithout) {
  const auto [name, world, dtype] = GetParam();
  CheckOverProcesses(name, world, {.tolerance = kTolerance, .dtype = dtype});
}

class ContextProcessesTest : public GoldenProcessesTest {};

// The keys of each sequence are divided.
TEST_P(ContextProcessesTest, LogitsAreGoldenWithGraphsAndWithout) {
  const auto [name, world, dtype] = GetParam();
  CheckOverProcesses(
      name, world,
      {.tolerance = kTolerance, .dtype = dtype, .divided = DividedGoldenCheck::Divided::kContext});
}

std::string NameOf(const testing::TestParamInfo<std::tuple<const char*, int, DType>>& info) {
  std::string name = std::get<0>(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name + "_on_" + std::to_string(std::get<1>(info.param)) + "_" +
         std::string(DTypeName(std::get<2>(info.param)));
}

INSTANTIATE_TEST_SUITE_P(All, GoldenProcessesTest,
                         testing::Combine(testing::Values("llama-rope-llama3", "qwen3", "gemma2",
                                                          "deepseek-mla", "llama4-chunked"),
                                          testing::ValuesIn(kWorlds), testing::ValuesIn(kDTypes)),
                         NameOf);

INSTANTIATE_TEST_SUITE_P(All, ContextProcessesTest,
                         testing::Combine(testing::Values("llama-rope-llama3", "gemma2",
                                                          "gpt-oss-sinks", "deepseek-mla"),
                                          testing::ValuesIn(kWorlds), testing::ValuesIn(kDTypes)),
                         NameOf);

}  // namespace
}  // namespace reprise
