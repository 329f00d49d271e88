// Times of a sum over two GPUs, us in a captured graph: NCCL, one shot, two shots, and what
// AllReduce() takes by itself, for a tensor of its own and for one in NewBuffer(). Forks its ranks.
//
//   all_reduce
//
// Each sum is an item of a chain of 20 in one graph.

#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "reprise/base/status_macros.h"
#include "reprise/distributed/launch.h"
#include "reprise/distributed/process_group.h"
#include "tests/benchmarks/device/replay_timer.h"

namespace reprise {
namespace {

constexpr int kChain = 20;

struct Way {
  const char* name;
  AllReduceLimits limits;
  bool in_buffer;
};

constexpr int64_t kMax = int64_t{8} << 20;
constexpr Way kWays[] = {
    {"nccl", {.max_symmetric_bytes = 0, .max_one_shot_bytes = 0}, false},
    {"push", {.max_symmetric_bytes = kMax, .max_push_bytes = kMax, .max_one_shot_bytes = 0}, false},
    {"one-shot",
     {.max_symmetric_bytes = kMax, .max_push_bytes = 0, .max_one_shot_bytes = kMax},
     false},
    {"copy+two-shot",
     {.max_symmetric_bytes = kMax,
      .max_push_bytes = 0,
      .max_one_shot_bytes = 0,
      .min_copied_bytes = 0},
     false},
    {"two-shot",
     {.max_symmetric_bytes = kMax,
      .max_push_bytes = 0,
      .max_one_shot_bytes = 0,
      .min_copied_bytes = 0},
     true},
    {"chosen", {}, false},
    {"chosen, buffer", {}, true},
};

absl::StatusOr<double> Time(Collectives& ranks, const Way& way, int64_t bytes, at::Device device) {
  at::Tensor tensor =
      at::zeros({bytes / 2}, at::TensorOptions().dtype(at::kBFloat16).device(device));
  if (way.in_buffer) {
    REPRISE_ASSIGN_OR_RETURN(tensor, ranks.NewBuffer({bytes / 2}, at::kBFloat16, device));
  }
  REPRISE_RETURN_IF_ERROR(ranks.Barrier());
  REPRISE_ASSIGN_OR_RETURN(const Timing timing,
                           TimeReplays(
                               [&]() -> absl::Status {
                                 for (int i = 0; i < kChain; ++i) {
                                   REPRISE_RETURN_IF_ERROR(ranks.AllReduce(tensor));
                                 }
                                 return absl::OkStatus();
                               },
                               {}));
  REPRISE_RETURN_IF_ERROR(ranks.Barrier());
  return timing.median_us / kChain;
}

absl::Status Run(const RankPlace& place) {
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank));
  const c10::cuda::CUDAGuard guard(device);
  std::vector<std::unique_ptr<Collectives>> groups;
  for (const Way& way : kWays) {
    RankPlace own = place;
    own.run = way.name;
    REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(own, device, {.limits = way.limits}));
    groups.push_back(std::move(ranks));
  }
  const bool prints = place.ranks.rank == 0;
  if (prints) {
    std::printf("| KB |");
    for (const Way& way : kWays) std::printf(" %s |", way.name);
    std::printf("\n");
  }
  for (int64_t kib : {8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}) {
    if (prints) std::printf("| %ld |", kib);
    for (size_t i = 0; i < groups.size(); ++i) {
      REPRISE_ASSIGN_OR_RETURN(const double us, Time(*groups[i], kWays[i], kib << 10, device));
      if (prints) std::printf(" %.1f |", us);
    }
    if (prints) std::printf("\n");
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main() {
  const absl::Status status = reprise::RunRanks(2, reprise::Run);
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
