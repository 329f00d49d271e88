// Time of each builder of metadata: inside a captured graph, and of its form on the host.
//
//   metadata            256 rows
//   metadata 64 1024    other numbers of rows
//
// A graph of one launch and one of 33 are replayed; the difference, divided by 32, is what a
// builder adds to a step in which it is one node of many. Without a GPU, only the host forms are
// timed.

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "tests/benchmarks/device/metadata_case.h"
#include "tests/benchmarks/device/replay_timer.h"

namespace reprise {
namespace {

constexpr int kLaunches = 32;

absl::StatusOr<Timing> TimeLaunches(const MetadataCase& builder, int count) {
  return TimeReplays(
      [&]() -> absl::Status {
        for (int i = 0; i < count; ++i) {
          REPRISE_RETURN_IF_ERROR(
              CudaStatus(builder.launch(c10::cuda::getCurrentCUDAStream()), builder.name));
        }
        return absl::OkStatus();
      },
      {.num_warmups = 5, .num_samples = 15, .replays_per_sample = 20});
}

// Median of samples of many builds, in microseconds.
double TimeOnHost(const HostMetadataCase& builder) {
  constexpr int kBuilds = 500;
  std::vector<double> samples_us;
  for (int sample = 0; sample < 31; ++sample) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kBuilds; ++i) builder.build();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    samples_us.push_back(took.count() / kBuilds);
  }
  std::sort(samples_us.begin(), samples_us.end());
  return samples_us[samples_us.size() / 2];
}

void RunOnHost(int num_rows) {
  std::printf("%d rows\n%-36s %9s\n", num_rows, "builder", "host");
  for (const HostMetadataCase& builder : HostMetadataCases(num_rows)) {
    std::printf("%-36s %6.2f us\n", builder.name.c_str(), TimeOnHost(builder));
  }
}

absl::Status Run(int num_rows) {
  std::printf("%d rows\n%-36s %9s %9s\n", num_rows, "builder", "in graph", "alone");
  std::vector<MetadataCase> builders = PlainMetadataCases(num_rows);
  for (MetadataCase& builder : DraftMetadataCases(num_rows)) builders.push_back(std::move(builder));
  for (const MetadataCase& builder : builders) {
    REPRISE_ASSIGN_OR_RETURN(const Timing one, TimeLaunches(builder, 1));
    REPRISE_ASSIGN_OR_RETURN(const Timing many, TimeLaunches(builder, 1 + kLaunches));
    std::printf("%-36s %6.2f us %6.2f us\n", builder.name.c_str(),
                (many.median_us - one.median_us) / kLaunches, one.median_us);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty()) sizes = {256};
  int num_devices = 0;
  const bool has_gpu = cudaGetDeviceCount(&num_devices) == cudaSuccess && num_devices > 0;
  for (const int num_rows : sizes) {
    reprise::RunOnHost(num_rows);
    if (!has_gpu) continue;
    if (const absl::Status status = reprise::Run(num_rows); !status.ok()) {
      std::fprintf(stderr, "metadata: %s\n", status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}
