// Bound: latency. A thread processes one or a few lines: it writes them to all peers, then polls
// its inbox. 8 KB over NVLink cost the launch, which is mostly hidden (base/dependent_launch.cuh),
// one transfer over the link, and the polls.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/distributed/push_all_reduce.h"
#include "reprise/distributed/push_lines.cuh"

namespace reprise {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxCtas = 128;

template <PushType kType>
__global__ void __launch_bounds__(kThreads)
    PushAllReduceKernel(const __grid_constant__ PushAllReduceArgs args) {
  TriggerDependents();
  GridDependencySync();
  const PushAllReduce sum(args);
  const int64_t num_lines = args.num_bytes / kPushDataBytes;
  PushLine* const data = static_cast<PushLine*>(args.data);
  const int64_t step = int64_t{gridDim.x} * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (int64_t i = first; i < num_lines; i += step) sum.Push(i);
  for (int64_t i = first; i < num_lines; i += step) {
    PushLine line[1] = {data[i]};
    sum.Replace<kType>(i, line);
    data[i] = line[0];
  }
  __syncthreads();
  if (threadIdx.x == 0) sum.End(gridDim.x);
}

}  // namespace

absl::Status LaunchPushAllReduce(const PushAllReduceArgs& args, CUstream_st* stream) {
  const int64_t num_lines = args.num_bytes / kPushDataBytes;
  if (num_lines == 0) return absl::OkStatus();
  const dim3 grid(
      static_cast<unsigned>(std::min<int64_t>((num_lines + kThreads - 1) / kThreads, kMaxCtas)));
  const auto kernel = args.type == PushType::kFloat32 ? PushAllReduceKernel<PushType::kFloat32>
                                                      : PushAllReduceKernel<PushType::kBFloat16>;
  return CudaStatus(LaunchDependent(kernel, grid, dim3(kThreads), 0, stream, args),
                    "LaunchPushAllReduce");
}

}  // namespace reprise
