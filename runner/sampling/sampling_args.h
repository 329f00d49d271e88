// Shared by the CPU and the GPU implementation of runner/sampling/sampling.h. Does not depend on
// LibTorch.

#ifndef REPRISE_RUNNER_SAMPLING_SAMPLING_ARGS_H_
#define REPRISE_RUNNER_SAMPLING_SAMPLING_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"
#include "reprise/runner/sampling/sampling_params.h"

struct CUstream_st;  // cudaStream_t

namespace reprise {

struct SamplingArgs {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  const void* logits = nullptr;   // [num_rows, vocab_size]
  int64_t logits_stride = 0;      // elements between rows
  int num_rows = 0;
  int vocab_size = 0;
  SamplingSlots slots;
  const int32_t* sample_slot = nullptr;    // [num_rows]
  const int32_t* sample_offset = nullptr;  // [num_rows]; null: the slots advance
  int32_t* out = nullptr;                  // [num_rows]
  SamplingFeatures features = SamplingFeatures::kGeneral;
};

// Enqueues the kernel. REQUIRES: the arguments pass the checks of Sample(). Errors: those of
// CudaStatus() (base/cuda_status.h). Only in builds with CUDA.
absl::Status LaunchSampling(const SamplingArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_ARGS_H_
