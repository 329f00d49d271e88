#include "reprise/graphs/stream_capture.h"

#ifdef REPRISE_WITH_CUDA

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <glog/logging.h>

#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

namespace device_allocator = c10::cuda::CUDACachingAllocator;

// The ID of the capture that includes `stream`, or 0. Called by allocators, so it must not throw.
c10::CaptureId_t CaptureIdOf(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  c10::CaptureId_t id = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &id) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return status == cudaStreamCaptureStatusActive ? id : 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamCapture>> StreamCapture::Begin(c10::cuda::CUDAStream stream,
                                                                    const GraphPool& pool) {
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamIsCapturing(stream.stream(), &capturing), "cudaStreamIsCapturing"));
  if (capturing != cudaStreamCaptureStatusNone) {
    return absl::FailedPreconditionError("the stream must not be captured already");
  }
  auto capture = std::unique_ptr<StreamCapture>(new StreamCapture(stream, pool));
  // Redirects allocations before the capture begins, so that every allocation in it uses the pool.
  REPRISE_RETURN_IF_ERROR(capture->BeginAllocating());
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture"));
  capture->is_capturing_ = true;
  capture->capture_id_ = CaptureIdOf(stream.stream());
  if (capture->capture_id_ == 0) return absl::InternalError("the stream's capture has no id");
  return capture;
}

absl::Status StreamCapture::BeginAllocating() {
  return CatchTorch([&] {
    const auto is_captured = [this](cudaStream_t stream) {
      const c10::CaptureId_t id = capture_id_;
      return id != 0 && CaptureIdOf(stream) == id;
    };
    device_allocator::beginAllocateToPool(device_, pool_id_, is_captured);
    is_device_allocating_ = true;
    at::getHostAllocator(at::kCUDA)->begin_allocate_to_pool(
        pool_id_, [is_captured](c10::Stream stream) {
          using c10::cuda::CUDAStream;
          return is_captured(CUDAStream(CUDAStream::UNCHECKED, stream).stream());
        });
    is_host_allocating_ = true;
    return absl::OkStatus();
  });
}

absl::Status StreamCapture::EndAllocating() {
  // Each begin call added a user to the pool. Releases that user; the GraphPool remains a user.
  absl::Status status = CatchTorch([&] {
    if (!is_device_allocating_) return absl::OkStatus();
    is_device_allocating_ = false;
    device_allocator::endAllocateToPool(device_, pool_id_);
    device_allocator::releasePool(device_, pool_id_);
    return absl::OkStatus();
  });
  status.Update(CatchTorch([&] {
    if (!is_host_allocating_) return absl::OkStatus();
    is_host_allocating_ = false;
    at::HostAllocator* const pinned = at::getHostAllocator(at::kCUDA);
    pinned->end_allocate_to_pool(pool_id_);
    pinned->release_pool(pool_id_);
    return absl::OkStatus();
  }));
  return status;
}

absl::StatusOr<cudaGraph_t> StreamCapture::End() {
  CHECK(is_capturing_) << "the capture has ended already";
  is_capturing_ = false;
  cudaGraph_t graph = nullptr;
  absl::Status status =
      CudaStatus(cudaStreamEndCapture(stream_.stream(), &graph), "cudaStreamEndCapture");
  capture_id_ = 0;
  status.Update(EndAllocating());
  if (status.ok() && graph == nullptr) status = absl::InternalError("the capture gave no graph");
  if (status.ok()) return graph;
  if (graph != nullptr) cudaGraphDestroy(graph);
  return status;
}

StreamCapture::~StreamCapture() {
  if (is_capturing_) {
    const absl::StatusOr<cudaGraph_t> graph = End();
    if (graph.ok()) cudaGraphDestroy(*graph);
  } else {
    const absl::Status status = EndAllocating();
    LOG_IF(WARNING, !status.ok()) << "an allocator was left in capture: " << status;
  }
}

}  // namespace reprise

#endif  // REPRISE_WITH_CUDA
