// Collectives between two GPUs: eager, and captured and replayed. To be run by itself: it forks
// its ranks before anything has touched CUDA.

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "distributed/process_group.h"
#include "distributed/testing/collectives_suite.h"
#include "distributed/testing/rank_reports.h"
#include "graphs/cuda_graph_backend.h"

namespace reprise {
namespace {

constexpr int kWorld = 2;

using RankBody = absl::FunctionRef<absl::Status(const RankPlace&, CudaGraphBackend&)>;

// Runs `body` on two ranks, each with its GPU and a stream that is current. Null where there are
// not two, and the test is skipped.
std::unique_ptr<RankReports> RunOnTwoGpus(RankBody body) {
  auto reports = std::make_unique<RankReports>(
      kWorld,
      [&](const RankPlace& place) -> absl::Status {
        if (c10::cuda::device_count() < kWorld) return absl::FailedPreconditionError("two GPUs");
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

at::Device DeviceOf(const RankPlace& place) {
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
}

// A step of collectives over tensors that stay. Each run has other values, made on the device from
// a count of the runs, and counts on the device what is not the plain sum.
class CheckedStep {
 public:
  static absl::StatusOr<std::unique_ptr<CheckedStep>> Create(Collectives& ranks, at::Device device,
                                                             std::vector<int64_t> sizes,
                                                             at::ScalarType dtype) {
    std::unique_ptr<CheckedStep> step(new CheckedStep(ranks));
    const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
    step->runs_ = at::zeros({1}, longs);
    step->errors_ = at::zeros({1}, longs);
    for (int64_t size : sizes) {
      Sum sum;
      sum.place = at::arange(size, longs).remainder(5);
      sum.plain = at::zeros({size}, longs.dtype(dtype));
      REPRISE_ASSIGN_OR_RETURN(sum.buffer, ranks.NewBuffer({size}, dtype, device));
      sum.gathered = at::zeros({kWorld, size}, longs.dtype(dtype));
      step->sums_.push_back(std::move(sum));
    }
    return step;
  }

  absl::Status Run() {
    runs_ += 1;
    for (Sum& sum : sums_) {
      // Rank r's values; sums of two are whole numbers below 128, exact in bfloat16.
      const at::Tensor base = runs_.remainder(29) + sum.place;
      const at::Tensor own = base + 3 * ranks_.ranks().rank;
      const at::Tensor total = 2 * base + 3;
      sum.plain.copy_(own);
      REPRISE_RETURN_IF_ERROR(ranks_.AllReduce(sum.plain));
      Count(sum.plain, total);
      sum.buffer.copy_(own);
      REPRISE_RETURN_IF_ERROR(ranks_.AllReduce(sum.buffer));
      Count(sum.buffer, total);

      sum.plain.copy_(own);
      REPRISE_RETURN_IF_ERROR(ranks_.AllGather(sum.plain, sum.gathered));
      for (int rank = 0; rank < kWorld; ++rank) Count(sum.gathered[rank], base + 3 * rank);
      REPRISE_RETURN_IF_ERROR(ranks_.ReduceScatter(sum.gathered, sum.plain));
      Count(sum.plain, kWorld * (base + 3 * ranks_.ranks().rank));
      for (int root = 0; root < kWorld; ++root) {
        sum.plain.copy_(own);
        REPRISE_RETURN_IF_ERROR(ranks_.Broadcast(sum.plain, root));
        Count(sum.plain, base + 3 * root);
      }
    }
    return absl::OkStatus();
  }

  // They await the device.
  int64_t runs() const { return runs_.item<int64_t>(); }
  int64_t errors() const { return errors_.item<int64_t>(); }

 private:
  struct Sum {
    at::Tensor place, plain, buffer, gathered;
  };

  explicit CheckedStep(Collectives& ranks) : ranks_(ranks) {}

  void Count(const at::Tensor& got, const at::Tensor& expected) {
    errors_ += got.to(at::kLong).ne(expected).sum();
  }

  Collectives& ranks_;
  at::Tensor runs_, errors_;
  std::vector<Sum> sums_;
};

absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(Collectives& ranks,
                                                       CudaGraphBackend& backend,
                                                       CheckedStep& step) {
  REPRISE_RETURN_IF_ERROR(step.Run());  // the warm-up
  c10::cuda::getCurrentCUDAStream().synchronize();
  REPRISE_RETURN_IF_ERROR(ranks.Barrier());
  return backend.Capture([&] { return step.Run(); });
}

TEST(RanksGpuTest, EveryCollectiveGivesPlainResults) {
  OnTwoGpus([](const RankPlace& place, CudaGraphBackend&) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place)));
    EXPECT_THAT(ranks->Fingerprint(), ::testing::HasSubstr("symmetric up to 4194304"));
    REPRISE_RETURN_IF_ERROR(ExpectPlainResults(*ranks, DeviceOf(place)));
    REPRISE_RETURN_IF_ERROR(ExpectPlainResults(*ranks, at::kCPU));
    REPRISE_RETURN_IF_ERROR(ExpectEqualBitsOnAllRanks(*ranks, DeviceOf(place)));
    return ExpectRefusalsToChangeNothing(*ranks, DeviceOf(place));
  });
}

TEST(RanksGpuTest, WithoutSymmetricMemoryTheResultsAreTheSame) {
  OnTwoGpus([](const RankPlace& place, CudaGraphBackend&) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(
        auto ranks, ConnectRanks(place, DeviceOf(place), {.limits = {.max_symmetric_bytes = 0}}));
    REPRISE_RETURN_IF_ERROR(ExpectPlainResults(*ranks, DeviceOf(place)));
    return ExpectEqualBitsOnAllRanks(*ranks, DeviceOf(place));
  });
}

TEST(RanksGpuTest, WithoutPushedSumsTheResultsAreTheSame) {
  OnTwoGpus([](const RankPlace& place, CudaGraphBackend&) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(
        auto ranks, ConnectRanks(place, DeviceOf(place), {.limits = {.max_push_bytes = 0}}));
    REPRISE_RETURN_IF_ERROR(ExpectPlainResults(*ranks, DeviceOf(place)));
    return ExpectEqualBitsOnAllRanks(*ranks, DeviceOf(place));
  });
}

// 8 KB to 8 MB in the dtype, so that each way of a sum is there, and sizes that no kernel likes.
std::vector<int64_t> Sizes() { return {7, 4096, 65536 + 8, 262144, 1 << 20, (4 << 20) + 8}; }

TEST(RanksGpuTest, TenThousandReplaysOfAllCollectives) {
  OnTwoGpus([](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place)));
    REPRISE_ASSIGN_OR_RETURN(
        auto step,
        CheckedStep::Create(*ranks, DeviceOf(place), {7, 4096, 65544, 262144}, at::kBFloat16));
    REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, *step));
    const int64_t before = step->runs();
    for (int replay = 0; replay < 10'000; ++replay) REPRISE_RETURN_IF_ERROR(graph->Replay());
    EXPECT_EQ(step->runs() - before, 10'000);
    EXPECT_EQ(step->errors(), 0);
    return ranks->Barrier();
  });
}

TEST(RanksGpuTest, EagerCallsSeveralGraphsAndHostCallsMayAlternate) {
  OnTwoGpus([](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place)));
    std::vector<std::unique_ptr<CheckedStep>> steps;
    std::vector<std::unique_ptr<CapturedGraph>> graphs;
    for (at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kHalf}) {
      REPRISE_ASSIGN_OR_RETURN(auto step,
                               CheckedStep::Create(*ranks, DeviceOf(place), Sizes(), dtype));
      // The second and third capture come after eager collectives.
      REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, *step));
      steps.push_back(std::move(step));
      graphs.push_back(std::move(graph));
    }
    int64_t runs = 0;
    for (const auto& step : steps) runs += step->runs();
    at::Tensor number = at::ones({1}, at::kLong);
    for (int round = 0; round < 100; ++round) {
      for (size_t i = 0; i < graphs.size(); ++i) {
        REPRISE_RETURN_IF_ERROR(graphs[(round + i) % graphs.size()]->Replay());
        REPRISE_RETURN_IF_ERROR(steps[i]->Run());
      }
      REPRISE_RETURN_IF_ERROR(ranks->Broadcast(number, round % kWorld));
    }
    for (const auto& step : steps) {
      runs -= step->runs();
      EXPECT_EQ(step->errors(), 0);
    }
    EXPECT_EQ(runs, -600);
    return ranks->Barrier();
  });
}

// Faults: rank 1 fails, and rank 0 must learn of it although its host waits for the device.

const ConnectOptions kQuick = {.timeout = absl::Seconds(3), .grace = absl::Seconds(1)};

// Of sums in symmetric memory by each of the kernels, and of NCCL's.
absl::StatusOr<std::unique_ptr<CheckedStep>> FaultyStep(Collectives& ranks, at::Device device) {
  return CheckedStep::Create(ranks, device, {7, 4096, 262144, 1 << 20, 4 << 20}, at::kBFloat16);
}

// Runs steps and awaits the device until that fails. Nothing waits there then.
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

TEST(RanksGpuTest, ARankThatIsKilledInAStepIsNamedAndTheDeviceGoesOn) {
  for (const bool captured : {true, false}) {
    SCOPED_TRACE(captured ? "captured" : "eager");
    const auto reports =
        RunOnTwoGpus([&](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
          REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place), kQuick));
          REPRISE_ASSIGN_OR_RETURN(auto step, FaultyStep(*ranks, DeviceOf(place)));
          REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, *step));
          const auto run = [&] { return captured ? graph->Replay() : step->Run(); };
          if (place.ranks.rank == 0) return RunUntilFailure(*ranks, run);
          for (int i = 0; i < 23; ++i) REPRISE_RETURN_IF_ERROR(run());
          raise(SIGKILL);
          return absl::OkStatus();
        });
    if (reports == nullptr) return;
    ExpectRank0(*reports, absl::StatusCode::kUnavailable, "has ended", absl::Seconds(40));
  }
}

TEST(RanksGpuTest, ARankThatHangsIsNamedAfterTheTimeout) {
  const auto reports =
      RunOnTwoGpus([&](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place), kQuick));
        REPRISE_ASSIGN_OR_RETURN(auto step, FaultyStep(*ranks, DeviceOf(place)));
        REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, *step));
        const absl::Time begin = absl::Now();
        if (place.ranks.rank == 0) {
          const absl::Status status = RunUntilFailure(*ranks, [&] { return graph->Replay(); });
          EXPECT_LT(absl::Now() - begin, absl::Seconds(7));
          return status;
        }
        absl::SleepFor(absl::Seconds(9));
        return ranks->status();
      });
  if (reports == nullptr) return;
  ExpectRank0(*reports, absl::StatusCode::kDeadlineExceeded, "did not come to device work",
              absl::Seconds(40));
  // When it comes, it learns what the other has said.
  EXPECT_EQ(reports->of(1)->code(), absl::StatusCode::kDeadlineExceeded) << reports->text();
}

TEST(RanksGpuTest, ARankThatIsKilledInACaptureIsNamed) {
  const auto reports =
      RunOnTwoGpus([&](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place), kQuick));
        REPRISE_ASSIGN_OR_RETURN(auto step, FaultyStep(*ranks, DeviceOf(place)));
        REPRISE_RETURN_IF_ERROR(step->Run());
        c10::cuda::getCurrentCUDAStream().synchronize();
        REPRISE_RETURN_IF_ERROR(ranks->Barrier());
        absl::StatusOr<std::unique_ptr<CapturedGraph>> graph =
            backend.Capture([&]() -> absl::Status {
              if (place.ranks.rank == 1) raise(SIGKILL);
              return step->Run();
            });
        // The capture may have come to its end before the other has.
        if (!graph.ok()) return ranks->status();
        return RunUntilFailure(*ranks, [&] { return (*graph)->Replay(); });
      });
  if (reports == nullptr) return;
  ExpectRank0(*reports, absl::StatusCode::kUnavailable, "has ended", absl::Seconds(40));
}

TEST(RanksGpuTest, ARankThatGivesUpTellsWhyAndTheDeviceGoesOn) {
  const auto reports =
      RunOnTwoGpus([&](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
        REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place), kQuick));
        REPRISE_ASSIGN_OR_RETURN(auto step, FaultyStep(*ranks, DeviceOf(place)));
        REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, *step));
        if (place.ranks.rank == 0) return RunUntilFailure(*ranks, [&] { return graph->Replay(); });
        ranks->Fail(absl::NotFoundError("no such weights"));
        absl::SleepFor(absl::Seconds(3));
        return ranks->status();
      });
  if (reports == nullptr) return;
  ExpectRank0(*reports, absl::StatusCode::kUnavailable, "no such weights", absl::Seconds(40));
}

}  // namespace
}  // namespace reprise
