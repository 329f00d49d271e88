// Captures the work of a stream into a CUDA graph. The capture always ends, even after errors
// inside the capture.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<StreamCapture> capture,
//                            StreamCapture::Begin(stream, pool));
//   absl::Status status = step();                      // enqueues on `stream`; must not throw
//   absl::StatusOr<cudaGraph_t> graph = capture->End();
//
// Between Begin() and End(), allocations on this stream and on streams forked from it come from
// `pool`; other allocations are unaffected. The capture mode is thread-local: other threads may use
// CUDA freely, but this thread must not synchronise.
//
// If the end of a capture fails, LibTorch's own CUDAGraph leaves its allocators in capture mode,
// and the pool cannot be used for another capture. StreamCapture always ends both the capture and
// the allocation. LibTorch's random number generators fail inside a StreamCapture: only CUDAGraph
// supports them.
//
// Thread safety: not thread-safe; the same thread must call Begin() and End(). Only in builds with
// CUDA.

#ifndef REPRISE_GRAPHS_STREAM_CAPTURE_H_
#define REPRISE_GRAPHS_STREAM_CAPTURE_H_

#ifdef REPRISE_WITH_CUDA

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/graphs/graph_pool.h"

namespace reprise {

class StreamCapture {
 public:
  // `pool` must outlive the capture and the graph.
  // Errors, without any effect: FailedPrecondition if the stream is already being captured;
  // Internal if CUDA or LibTorch fails.
  static absl::StatusOr<std::unique_ptr<StreamCapture>> Begin(c10::cuda::CUDAStream stream,
                                                              const GraphPool& pool);

  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;
  // Ends the capture and discards it, unless End() has been called.
  ~StreamCapture();

  // Ends the capture. The caller must destroy the returned graph. The stream and the allocators
  // leave capture mode in every case. REQUIRES: not ended yet.
  // Errors: Internal if the work broke the capture: a synchronisation, a forked stream that was not
  // joined, or work on a stream that waits for this stream.
  absl::StatusOr<cudaGraph_t> End();

 private:
  StreamCapture(c10::cuda::CUDAStream stream, const GraphPool& pool)
      : stream_(stream), device_(pool.device()), pool_id_(pool.id()) {}

  absl::Status BeginAllocating();
  absl::Status EndAllocating();

  const c10::cuda::CUDAStream stream_;
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_id_;
  // 0: no capture. Read by every thread that allocates.
  std::atomic<c10::CaptureId_t> capture_id_ = 0;
  bool is_capturing_ = false;
  bool is_device_allocating_ = false;
  bool is_host_allocating_ = false;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA

#endif  // REPRISE_GRAPHS_STREAM_CAPTURE_H_
