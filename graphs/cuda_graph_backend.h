// Captured steps as CUDA graphs of LibTorch and other work on one stream.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaGraphBackend> backend,
//                            CudaGraphBackend::Create({.device = 0}));
//   auto graph = backend->Capture([&] { return model_step(); });   // runs with the stream current
//   (*graph)->Replay();                                             // one launch on that stream
//
// Warm-up, capture and replay run on one long-lived stream. Run eager steps on it as well
// (stream()), so that they reuse the warm-up's memory and all work is in order. Captures are
// thread-local: other threads may use the device meanwhile.
//
// While it is captured, the step must not synchronise, read a value back to the host, fork a stream
// without joining it, or use random numbers of LibTorch's generator. Products of LibTorch run in
// workspaces that it keeps for the stream: the warm-up makes them outside the capture, and they
// stay for the life of the process. A step that breaks a rule makes Capture() fail and leaves
// backend, graphs and allocators as before.
//
// Tensors that the step makes are in a pool that all graphs of the backend share and each replay
// uses again. They must not be read after a replay: a step's last kernels write into buffers of the
// caller. Tensors of the caller must outlive the graphs; the destructor of a graph waits for its
// stream, so they may be freed after it.
//
// Life: destroy graphs before the backend (CHECKed), and the backend before the stream that it was
// given. Thread safety: none; one owner. Replay() is one cudaGraphLaunch: no synchronisation, no
// allocation.

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
  // Of `device`, not a default stream. nullopt: one of LibTorch's high-priority streams.
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
