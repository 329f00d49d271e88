#include "reprise/base/graph_pins.h"

#include <string>
#ifdef REPRISE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include "absl/strings/str_cat.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"

namespace reprise {
#ifdef REPRISE_WITH_CUDA
namespace {

struct Capture {
  uint64_t id = 0;  // 0: no capture
  cudaGraph_t graph = nullptr;
};

// Finds the capture that includes `stream`.
absl::Status FindCapture(cudaStream_t stream, Capture& capture) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  const cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, &id, &graph, nullptr, nullptr, nullptr);
#else
  const cudaError_t error =
      cudaStreamGetCaptureInfo_v2(stream, &status, &id, &graph, nullptr, nullptr);
#endif
  REPRISE_RETURN_IF_ERROR(CudaStatus(error, "cudaStreamGetCaptureInfo"));
  if (status == cudaStreamCaptureStatusActive) capture = {.id = id, .graph = graph};
  return absl::OkStatus();
}

// Runs on a thread of CUDA and must not call CUDA.
void LetGo(void* pin) { delete static_cast<GraphPins::Pin*>(pin); }

// Makes `graph` hold a copy of `pin`.
absl::Status GiveTo(cudaGraph_t graph, const GraphPins::Pin& pin) {
  auto held = std::make_unique<GraphPins::Pin>(pin);
  cudaUserObject_t object = nullptr;
  REPRISE_RETURN_IF_ERROR(
      CudaStatus(cudaUserObjectCreate(&object, held.get(), LetGo, /*initialRefcount=*/1,
                                      cudaUserObjectNoDestructorSync),
                 "cudaUserObjectCreate"));
  held.release();  // owned by the user object from here
  const absl::Status given =
      CudaStatus(cudaGraphRetainUserObject(graph, object, /*count=*/1, cudaGraphUserObjectMove),
                 "cudaGraphRetainUserObject");
  if (!given.ok()) cudaUserObjectRelease(object, 1);
  return given;
}

}  // namespace

absl::StatusOr<uint64_t> GraphPins::PinIfCaptured(CUstream_st* stream) {
  Capture capture;
  REPRISE_RETURN_IF_ERROR(FindCapture(stream, capture));
  if (capture.id != 0 && capture.id != last_capture_) {
    REPRISE_RETURN_IF_ERROR(GiveTo(capture.graph, Take()));
    last_capture_ = capture.id;
  }
  return capture.id;
}

#else

absl::StatusOr<uint64_t> GraphPins::PinIfCaptured(CUstream_st*) { return 0; }

#endif  // REPRISE_WITH_CUDA

GraphPins::Pin GraphPins::Take() const {
  ++*count_;
  return Pin(count_.get(), [count = count_](const void*) { --*count; });
}

absl::Status GraphPins::CheckNone(std::string_view what) const {
  const int64_t num_pins = count();
  if (num_pins == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(what),
                   " must stay while captured graphs use it: expected 0 graphs, got ", num_pins));
}

}  // namespace reprise
