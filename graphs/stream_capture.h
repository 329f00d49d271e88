// The capture of a stream's work into a CUDA graph, ended whatever happens inside.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<StreamCapture> capture,
//                            StreamCapture::Begin(stream, pool));
//   absl::Status status = step();                      // enqueues on `stream`; must not throw
//   absl::StatusOr<cudaGraph_t> graph = capture->End();
//
// Between Begin() and End(), allocations that belong to the capture come from `pool`, on this
// stream and on those forked from it; all others are as ever. The capture mode is thread-local:
// other threads may use CUDA freely, this one must not synchronise.
//
// LibTorch's own CUDAGraph leaves its allocators in capture when the end of a capture fails, after
// which none can begin in that pool. Here both ends are always reached. LibTorch's random numbers
// are refused inside: they belong to CUDAGraph.
//
// Thread safety: none; one thread begins and ends. Only in builds with CUDA.

#ifndef GRAPHS_STREAM_CAPTURE_H_
#define GRAPHS_STREAM_CAPTURE_H_

#ifdef REPRISE_WITH_CUDA

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graphs/graph_pool.h"

namespace reprise {

class StreamCapture {
 public:
  // `pool` must outlive the capture and the graph. Errors, nothing having begun: FailedPrecondition
  // if the stream is being captured already; Internal if CUDA or LibTorch refuses.
  static absl::StatusOr<std::unique_ptr<StreamCapture>> Begin(c10::cuda::CUDAStream stream,
                                                              const GraphPool& pool);

  StreamCapture(const StreamCapture&) = delete;
  StreamCapture& operator=(const StreamCapture&) = delete;
  // Ends and drops a capture that was not ended.
  ~StreamCapture();

  // Ends the capture. The graph is the caller's to destroy. Internal if something inside broke the
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
  // 0: none. Read by whatever thread allocates.
  std::atomic<c10::CaptureId_t> capture_id_ = 0;
  bool is_capturing_ = false;
  bool is_device_allocating_ = false;
  bool is_host_allocating_ = false;
};

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA

#endif  // GRAPHS_STREAM_CAPTURE_H_
