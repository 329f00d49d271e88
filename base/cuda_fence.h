// A Fence on a CUDA stream: an event that is recorded after all work enqueued on the stream so far.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<Fence> fence, MakeCudaFence({.stream = stream}));
//   LaunchRefill(delta, stream);
//   fence->Arm();
//   REPRISE_RETURN_IF_ERROR(fence->Wait());   // the delta may be overwritten
//
// If the device has failed, its fences complete; each fence logs the failure once, and Wait()
// returns it. Do not arm a fence while its stream is being captured, because the host cannot query
// a captured event. In that case the fence logs a warning and completes, and Wait() returns the
// error.
//
// The stream must outlive the last arming of the fence. Cost: Arm() and Passed() take about 1 us
// and do not allocate; Wait() spins or sleeps inside CUDA.

#ifndef REPRISE_BASE_CUDA_FENCE_H_
#define REPRISE_BASE_CUDA_FENCE_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "reprise/base/fence.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct CudaFenceOptions {
  // How Wait() waits. Spinning occupies a core and is some microseconds faster.
  enum class Waiting : int8_t { kSpin, kSleep };

  int device = 0;
  CUstream_st* stream = nullptr;  // a stream of `device`; null: its default stream
  Waiting waiting = Waiting::kSpin;
};

// Errors: Internal if CUDA cannot create an event; Unimplemented in a build without CUDA.
absl::StatusOr<std::unique_ptr<Fence>> MakeCudaFence(const CudaFenceOptions& options);

}  // namespace reprise

#endif  // REPRISE_BASE_CUDA_FENCE_H_
