// Captures steps of LibTorch and other work on one stream as CUDA graphs.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaGraphBackend> backend,
//                            CudaGraphBackend::Create({.device = 0}));
//   auto graph = backend->Capture([&] { return model_step(); });   // runs with the stream current
//   (*graph)->Replay();                                             // one launch on that stream
//
// Warm-up, capture and replay run on one long-lived stream. Run eager steps on the same stream
// (stream()): they then reuse the warm-up's memory, and all work is ordered. Captures are
// thread-local: other threads may use the device during a capture.
//
// During a capture, the step must not synchronise, read a value back to the host, fork a stream
// without joining it, or use random numbers of LibTorch's generator. If a step breaks a rule,
// Capture() fails and leaves the backend, the graphs and the allocators unchanged. LibTorch's GEMMs
// use workspaces that LibTorch keeps per stream. The warm-up allocates these workspaces outside the
// capture, and they exist until the process ends.
//
// All graphs of a backend allocate the step's tensors from one shared pool, and each replay reuses
// that memory. Do not read these tensors after a replay: the last kernels of a step must write into
// buffers of the caller. The caller's tensors must outlive the graphs. The destructor of a graph
// waits for the stream, so the caller may free its tensors afterwards.
//
// Lifetime: destroy the graphs before the backend (CHECKed), and the backend before the stream that
// was passed to Create(). Thread safety: not thread-safe; one owner. Cost: Replay() is one
// cudaGraphLaunch per graph; it does not synchronise or allocate.

#ifndef REPRISE_GRAPHS_CUDA_GRAPH_BACKEND_H_
#define REPRISE_GRAPHS_CUDA_GRAPH_BACKEND_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "reprise/graphs/graph_backend.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct CudaGraphBackendOptions {
  int device = 0;
  // A stream of `device`; must not be a default stream. nullopt: one of LibTorch's high-priority
  // streams.
  std::optional<CUstream_st*> stream = std::nullopt;
};

class CudaGraphBackend : public GraphBackend {
 public:
  // Errors: InvalidArgument naming the field; Unimplemented in a build without CUDA.
  static absl::StatusOr<std::unique_ptr<CudaGraphBackend>> Create(
      const CudaGraphBackendOptions& options);

  virtual CUstream_st* stream() const = 0;
};

}  // namespace reprise

#endif  // REPRISE_GRAPHS_CUDA_GRAPH_BACKEND_H_
