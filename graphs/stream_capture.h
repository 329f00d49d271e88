// The capture of a stream's work into a CUDA graph. The capture always ends, also after errors
// inside it.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<StreamCapture> capture,
//                            StreamCapture::Begin(stream, pool));
//   absl::Status status = step();                      // enqueues on `stream`; must not throw
//   absl::StatusOr<cudaGraph_t> graph = capture->End();
//
// Between Begin() and End(), allocations on this stream and on streams forked from it come from
// `pool`; all others are unaffected. The capture mode is thread-local: other threads may use CUDA
// freely, this one must not synchronise.
//
// LibTorch's own CUDAGraph leaves its allocators in capture when the end of a capture fails, and
// then no further capture can begin in that pool. StreamCapture always ends both. LibTorch's random
// numbers are refused inside a capture: only its CUDAGraph supports them.
//
// Thread safety: none; one thread begins and ends. Only in builds with CUDA.

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
  // `pool` must outlive the capture and the graph. Errors, before anything has begun:
  // FailedPrecondition if the stream is being captured already; Internal if CUDA or LibTorch
  // refuses.
  static absl::StatusOr<std::unique_ptr<StreamCapture>> Begin(c10::cuda::CUDAStream stream,
                                                              const GraphPool& pool);

  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;
  // Ends and discards a capture that was not ended.
  ~StreamCapture();

  // Ends the capture. The caller destroys the graph. Internal if the work inside broke the
  // capture: a synchronisation, a forked stream that was not joined, work on a stream that waits
  // for this one. The stream and the allocators are as before in every case. REQUIRES: not ended
  // yet.
  absl::StatusOr<cudaGraph_t> End();

 private:
  StreamCapture(c10::cuda::CUDAStream stream, const GraphPool& pool)
      : stream_(stream), device_(pool.device()), pool_id_(pool.id()) {}

  absl::Status BeginAllocating();
  absl::Status EndAllocating();

  const c10::cuda::CUDAStream stream_;
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_id_;
  // 0: none. Read by every thread that allocates.
  std::atomic<c10::CaptureId_t> capture_id_ = 0;
  bool is_capturing_ = false;
  bool is_device_allocating_ = false;
  bool is_host_allocating_ = false;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA

#endif  // REPRISE_GRAPHS_STREAM_CAPTURE_H_
