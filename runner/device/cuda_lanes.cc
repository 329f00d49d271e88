#include "reprise/runner/device/cuda_lanes.h"

#include "reprise/base/status_macros.h"
#ifdef REPRISE_WITH_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>

#include "reprise/base/cuda_status.h"
#endif

namespace reprise {

#ifdef REPRISE_WITH_CUDA

absl::StatusOr<std::unique_ptr<CudaLanes>> CudaLanes::Create(CUstream_st* main) {
  auto lanes = std::unique_ptr<CudaLanes>(new CudaLanes(main));
  const auto make_event = [](cudaEvent_t* event) {
    return CudaStatus(cudaEventCreateWithFlags(event, cudaEventDisableTiming),
                      "cudaEventCreateWithFlags");
  };
  int priority = 0;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamGetPriority(main, &priority), "cudaStreamGetPriority"));
  REPRISE_RETURN_IF_ERROR(make_event(&lanes->fork_));
  for (int i = 0; i < kMaxLanes - 1; ++i) {
    REPRISE_RETURN_IF_ERROR(make_event(&lanes->joins_[i]));
    REPRISE_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithPriority(&lanes->sides_[i], cudaStreamNonBlocking, priority),
                   "cudaStreamCreateWithPriority"));
  }
  return lanes;
}

CudaLanes::~CudaLanes() {
  for (cudaStream_t side : sides_) {
    if (side != nullptr) cudaStreamDestroy(side);
  }
  for (cudaEvent_t join : joins_) {
    if (join != nullptr) cudaEventDestroy(join);
  }
  if (fork_ != nullptr) cudaEventDestroy(fork_);
}

absl::Status CudaLanes::Run(int num_lanes, absl::FunctionRef<absl::Status(int lane)> work) {
  const int num_sides = std::min(num_lanes, kMaxLanes) - 1;
  if (num_sides > 0) {
    REPRISE_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(fork_, main_), "cudaEventRecord"));
  }
  absl::Status status;
  for (int i = 0; i < num_sides; ++i) {
    status.Update(CudaStatus(cudaStreamWaitEvent(sides_[i], fork_, 0), "cudaStreamWaitEvent"));
  }
  for (int lane = 0; lane < num_lanes && status.ok(); ++lane) {
    stream_ = lane % kMaxLanes == 0 ? main_ : sides_[lane % kMaxLanes - 1];
    status = work(lane);
  }
  stream_ = main_;
  for (int i = 0; i < num_sides; ++i) {
    status.Update(CudaStatus(cudaEventRecord(joins_[i], sides_[i]), "cudaEventRecord"));
    status.Update(CudaStatus(cudaStreamWaitEvent(main_, joins_[i], 0), "cudaStreamWaitEvent"));
  }
  return status;
}

#else  // REPRISE_WITH_CUDA

absl::StatusOr<std::unique_ptr<CudaLanes>> CudaLanes::Create(CUstream_st*) {
  return absl::UnimplementedError("this build has no CUDA, so it has no streams");
}
CudaLanes::~CudaLanes() = default;
absl::Status CudaLanes::Run(int, absl::FunctionRef<absl::Status(int lane)>) {
  return absl::UnimplementedError("this build has no CUDA, so it has no streams");
}

#endif  // REPRISE_WITH_CUDA

}  // namespace reprise
