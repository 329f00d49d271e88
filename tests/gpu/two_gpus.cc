#include "tests/gpu/two_gpus.h"

#include <ATen/ops/ones.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {

std::unique_ptr<RankReports> RunOnTwoGpus(RankBody body) {
  auto reports = std::make_unique<RankReports>(
      kTwoGpus,
      [&](const RankPlace& place) -> absl::Status {
        if (c10::cuda::device_count() < kTwoGpus) return absl::FailedPreconditionError("two GPUs");
        const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(place.local_rank));
        REPRISE_ASSIGN_OR_RETURN(auto backend,
                                 CudaGraphBackend::Create({.device = place.local_rank}));
        const c10::cuda::CUDAStreamGuard stream(c10::cuda::getStreamFromExternal(
            backend->stream(), static_cast<c10::DeviceIndex>(place.local_rank)));
        return body(place, *backend);
      },
      absl::Seconds(100));
  const auto skip = [](const std::string& why) { GTEST_SKIP() << why; };
  if (reports->of(0) && reports->of(0)->message() == "two GPUs") {
    skip("needs two GPUs");
    return nullptr;
  }
  // Other tests of the program may have touched CUDA.
  if (absl::IsFailedPrecondition(reports->status())) {
    skip(absl::StrCat(reports->status().ToString(), ": run RanksGpuTest.* by themselves"));
    return nullptr;
  }
  return reports;
}

void OnTwoGpus(RankBody body) {
  const auto reports = RunOnTwoGpus(body);
  if (reports == nullptr) return;
  EXPECT_TRUE(reports->ok()) << reports->text();
}

c10::Device DeviceOf(const RankPlace& place) {
  return c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
}

absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(Collectives& ranks,
                                                       CudaGraphBackend& backend,
                                                       absl::FunctionRef<absl::Status()> step) {
  REPRISE_RETURN_IF_ERROR(step());  // the warm-up
  c10::cuda::getCurrentCUDAStream().synchronize();
  REPRISE_RETURN_IF_ERROR(ranks.Barrier());
  return backend.Capture(step);
}

absl::Status RunUntilFailure(Collectives& ranks, absl::FunctionRef<absl::Status()> run) {
  for (int i = 0; i < 1000; ++i) {
    const absl::Status status = ranks.AwaitDevice([&]() -> absl::Status {
      for (int step = 0; step < 5; ++step) REPRISE_RETURN_IF_ERROR(run());
      c10::cuda::getCurrentCUDAStream().synchronize();
      return absl::OkStatus();
    });
    if (status.ok()) continue;
    EXPECT_EQ(ranks.status(), status);
    at::Tensor tensor = at::ones({4}, at::TensorOptions().device(at::kCUDA));
    c10::cuda::device_synchronize();
    EXPECT_EQ(ranks.AllReduce(tensor), status);
    EXPECT_EQ(tensor.sum().item<float>(), 4);
    return status;
  }
  return absl::OkStatus();
}

void ExpectRank0(const RankReports& reports, absl::StatusCode code, const std::string& text,
                 absl::Duration limit) {
  ASSERT_TRUE(reports.of(0).has_value()) << reports.text();
  EXPECT_EQ(reports.of(0)->code(), code) << *reports.of(0);
  EXPECT_THAT(std::string(reports.of(0)->message()), ::testing::HasSubstr("rank 1 (process "));
  EXPECT_THAT(std::string(reports.of(0)->message()), ::testing::HasSubstr(text));
  EXPECT_LT(reports.took(), limit);
}

}  // namespace reprise
