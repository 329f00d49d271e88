#include "tests/benchmarks/device/replay_timer.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <vector>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<Timing> TimeReplays(absl::FunctionRef<absl::Status()> work,
                                   const ReplayTimerOptions& options) {
  return CatchTorchOr([&]() -> absl::StatusOr<Timing> {
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(stream);
    REPRISE_RETURN_IF_ERROR(work());
    stream.synchronize();
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    const absl::Status captured = work();
    graph.capture_end();
    REPRISE_RETURN_IF_ERROR(captured);

    for (int i = 0; i < options.num_warmups; ++i) graph.replay();
    std::vector<double> samples_us;
    for (int sample = 0; sample < options.num_samples; ++sample) {
      at::cuda::CUDAEvent begin(cudaEventDefault);
      at::cuda::CUDAEvent end(cudaEventDefault);
      begin.record(stream);
      for (int i = 0; i < options.replays_per_sample; ++i) graph.replay();
      end.record(stream);
      end.synchronize();
      samples_us.push_back(1e3 * begin.elapsed_time(end) / options.replays_per_sample);
    }
    std::sort(samples_us.begin(), samples_us.end());
    return Timing{.median_us = samples_us[samples_us.size() / 2],
                  .min_us = samples_us.front(),
                  .max_us = samples_us.back()};
  });
}

}  // namespace reprise
