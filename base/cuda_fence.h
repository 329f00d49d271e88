// The Fence of a CUDA stream: an event recorded after all work that the stream has been given so
// far.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Fence> fence, MakeCudaFence({.stream = stream}));
//   LaunchRefill(delta, stream);
//   fence->Arm();
//   REPRISE_RETURN_IF_ERROR(fence->Wait());   // the delta may be overwritten
//
// If the device has failed, its fences pass, each logs the failure once, and Wait() returns it. A
// fence must not be armed while its stream is being captured, because the host cannot query a
// captured event. (The fence then logs, passes, and Wait() returns an error.)
//
// The stream must outlive the fence's last arming. Cost: Arm() and Passed() take about a
// microsecond and do not allocate; Wait() sleeps or spins as CUDA does.

#ifndef REPRISE_BASE_CUDA_FENCE_H_
#define REPRISE_BASE_CUDA_FENCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "reprise/base/fence.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct CudaFenceOptions {
  // How Wait() waits: spinning on a core is some microseconds faster.
  enum class Waiting : int8_t { kSpin, kSleep };

  int device = 0;
  CUstream_st* stream = nullptr;  // of `device`; null: its default stream
  Waiting waiting = Waiting::kSpin;
};

// Errors: Internal if CUDA does not give an event; Unimplemented in a build without CUDA.
absl::StatusOr<std::unique_ptr<Fence>> MakeCudaFence(const CudaFenceOptions& options);

}  // namespace reprise

#endif  // REPRISE_BASE_CUDA_FENCE_H_
