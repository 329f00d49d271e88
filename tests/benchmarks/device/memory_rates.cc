#include "tests/benchmarks/device/memory_rates.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>

#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"
#include "tests/benchmarks/device/replay_timer.h"
#include "tests/benchmarks/device/stream_kernels.h"

namespace reprise {

absl::StatusOr<MemoryRates> MeasureMemoryRates() {
  return CatchTorchOr([]() -> absl::StatusOr<MemoryRates> {
    constexpr int64_t kBytes = int64_t{2} << 30;  // 34 times the L2 of an H200
    const at::TensorOptions options = at::TensorOptions(c10::kCUDA).dtype(at::kByte);
    const at::Tensor from = at::empty({kBytes}, options).random_();
    const at::Tensor to = at::empty({kBytes}, options);
    const at::Tensor sink = at::zeros({4}, options);
    REPRISE_ASSIGN_OR_RETURN(
        const Timing read,
        TimeReplays(
            [&] {
              return CudaStatus(
                  LaunchStreamRead(from.data_ptr(), kBytes, static_cast<uint32_t*>(sink.data_ptr()),
                                   c10::cuda::getCurrentCUDAStream()),
                  "stream read");
            },
            {}));
    REPRISE_ASSIGN_OR_RETURN(const Timing copy,
                             TimeReplays(
                                 [&] {
                                   return CudaStatus(
                                       LaunchStreamCopy(from.data_ptr(), to.data_ptr(), kBytes,
                                                        c10::cuda::getCurrentCUDAStream()),
                                       "stream copy");
                                 },
                                 {}));
    return MemoryRates{.read_tb_per_s = kBytes / read.median_us / 1e6,
                       .copy_tb_per_s = 2 * kBytes / copy.median_us / 1e6};
  });
}

}  // namespace reprise
