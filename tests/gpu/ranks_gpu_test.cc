// Collectives between two GPUs: eager, and captured and replayed. To be run by itself: it forks
// its ranks before anything has touched CUDA.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "reprise/base/status_macros.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/testing/collectives_suite.h"
#include "reprise/graphs/cuda_graph_backend.h"
#include "tests/gpu/two_gpus.h"

namespace reprise {
namespace {

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
      sum.gathered = at::zeros({kTwoGpus, size}, longs.dtype(dtype));
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
      for (int rank = 0; rank < kTwoGpus; ++rank) Count(sum.gathered[rank], base + 3 * rank);
      REPRISE_RETURN_IF_ERROR(ranks_.ReduceScatter(sum.gathered, sum.plain));
      Count(sum.plain, kTwoGpus * (base + 3 * ranks_.ranks().rank));
      for (int root = 0; root < kTwoGpus; ++root) {
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

TEST(RanksGpuTest, WithoutPushAllReducesTheResultsAreTheSame) {
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
    REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return step->Run(); }));
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
      REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return step->Run(); }));
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
      REPRISE_RETURN_IF_ERROR(ranks->Broadcast(number, round % kTwoGpus));
    }
    for (const auto& step : steps) {
      runs -= step->runs();
      EXPECT_EQ(step->errors(), 0);
    }
    EXPECT_EQ(runs, -600);
    return ranks->Barrier();
  });
}

// Faults.

// Of sums in symmetric memory by each of the kernels, and of NCCL's.
absl::StatusOr<std::unique_ptr<CheckedStep>> FaultyStep(Collectives& ranks, at::Device device) {
  return CheckedStep::Create(ranks, device, {7, 4096, 262144, 1 << 20, 4 << 20}, at::kBFloat16);
}

TEST(RanksGpuTest, ARankThatIsKilledInAStepIsNamedAndTheDeviceGoesOn) {
  for (const bool captured : {true, false}) {
    SCOPED_TRACE(captured ? "captured" : "eager");
    const auto reports = RunOnTwoGpus([&](const RankPlace& place,
                                          CudaGraphBackend& backend) -> absl::Status {
      REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place), kQuick));
      REPRISE_ASSIGN_OR_RETURN(auto step, FaultyStep(*ranks, DeviceOf(place)));
      REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return step->Run(); }));
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
        REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return step->Run(); }));
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
  ExpectRank0(*reports, absl::StatusCode::kDeadlineExceeded, "did not reach device work",
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
        REPRISE_ASSIGN_OR_RETURN(auto graph, Capture(*ranks, backend, [&] { return step->Run(); }));
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
