// Tests on two GPUs: each rank is a process with one of them, forked before anything has touched CUDA.
//
//   TEST(RanksGpuTest, Sums) {
//     OnTwoGpus([](const RankPlace& place, CudaGraphBackend& backend) -> absl::Status {
//       REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, DeviceOf(place)));
//       ...
//     });
//   }

#ifndef TESTS_GPU_TWO_GPUS_H_
#define TESTS_GPU_TWO_GPUS_H_

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/process_group.h"
#include "reprise/distributed/testing/rank_reports.h"
#include "reprise/graphs/cuda_graph_backend.h"

namespace reprise {

inline constexpr int kTwoGpus = 2;

using RankBody = absl::FunctionRef<absl::Status(const RankPlace&, CudaGraphBackend&)>;

// Runs `body` on two ranks, each with its GPU and a stream that is current. Null where there are
// not two, and the test is skipped.
std::unique_ptr<RankReports> RunOnTwoGpus(RankBody body);

// The same; all bodies must return OK.
void OnTwoGpus(RankBody body);

c10::Device DeviceOf(const RankPlace& place);

// Runs `step`, awaits the device and the other rank, and captures it.
absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(Collectives& ranks,
                                                       CudaGraphBackend& backend,
                                                       absl::FunctionRef<absl::Status()> step);

// Faults: rank 1 fails, and rank 0 must learn of it although its host waits for the device.

inline const ConnectOptions kQuick = {.timeout = absl::Seconds(3), .grace = absl::Seconds(1)};

// Runs steps and awaits the device until that fails. Nothing waits there then.
absl::Status RunUntilFailure(Collectives& ranks, absl::FunctionRef<absl::Status()> run);

// Expects that rank 0 returned such a Status, which names rank 1 and has `text`, within `limit`.
void ExpectRank0(const RankReports& reports, absl::StatusCode code, const std::string& text,
                 absl::Duration limit);

}  // namespace reprise

#endif  // TESTS_GPU_TWO_GPUS_H_
