// Captured steps as CUDA graphs of LibTorch and other work on one stream.
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<CudaGraphBackend> backend,
//                            CudaGraphBackend::Create({.device = 0}));
//   auto graph = backend->Capture([&] { return model_step(); });   // runs with the stream current
//   (*graph)->Replay();                                             // one launch on that stream
//
// One long-lived stream carries warm-up, capture and replay; eager steps belong on it as well
// (stream()), so that their memory is the warm-up's and all work is in order. Captures are
// thread-local: other threads may use the device meanwhile.
//
// What the step must keep to while it is captured: no synchronisation and no value read back to the
// host, no stream that is forked and not joined, no random numbers of LibTorch's generator.
// Products of LibTorch run in workspaces that it keeps for the stream: the warm-up makes them
// outside the capture, and they stay for the life of the process. What breaks a rule is an error of
// Capture(), after which backend, graphs and allocators are as before.
//
// Tensors that the step makes live in a pool shared by all graphs of the backend and used anew by
// each replay: nothing in it is read after a replay, a step's last kernels write into buffers of
// the caller. Tensors of the caller must outlive the graphs; a graph that ends waits for its
// stream, so they may be freed then.
//
// Life: graphs end before the backend (CHECKed), the backend before the stream it was given. Thread
// safety: none; one owner. Replay() is one cudaGraphLaunch: no synchronisation, no allocation.

#ifndef GRAPHS_CUDA_GRAPH_BACKEND_H_
#define GRAPHS_CUDA_GRAPH_BACKEND_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "graphs/graph_backend.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct CudaGraphBackendOptions {
  int device = 0;
  // Of `device`, not one of the default streams. Nothing: one of LibTorch's high-priority streams.
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

#endif  // GRAPHS_CUDA_GRAPH_BACKEND_H_
