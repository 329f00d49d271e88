// How a step is captured and replayed on one device: CUDA graphs on a GPU, the recorded call on a
// CPU.
//
// A backend owns a memory pool and uses one stream; its graphs share both, so no two of them run at
// once. GraphSet (graphs/graph_set.h) decides which graph serves a step; a backend only captures
// and replays.
//
//   auto backend = MakeRecordedBackend();              // or CudaGraphBackend::Create(options)
//   auto graph = backend->Capture([=] { return model_step(); });
//   (*graph)->Replay();
//
// The captured callable must take everything that varies from step to step from memory at unchanged
// addresses. On the CPU the callable itself is kept and run again, so whatever it holds by value is
// frozen at capture, as kernel arguments are; what it holds by reference must outlive the graph and
// must not be a host value that changes.
//
// The callable runs more often than the step does: once as warm-up before the capture proper, and
// after a capture its replay does the same work again. It must therefore be idempotent over
// unchanged buffers: a forward pass that writes keys to given slots is, advancing a counter is not.
//
// Life: capture any number of graphs, largest first (they then reuse one pool); destroy all graphs
// before their backend, together. Thread safety: none; one owner.

#ifndef GRAPHS_GRAPH_BACKEND_H_
#define GRAPHS_GRAPH_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

// Device memory of one graph, measured. Zero on the CPU.
struct GraphBytes {
  int64_t pool = 0;    // tensors made inside the capture: shared with the backend's other graphs
  int64_t driver = 0;  // kernel arguments, nodes, local memory: the graph's own

  int64_t total() const { return pool + driver; }
  friend bool operator==(const GraphBytes&, const GraphBytes&) = default;
};

class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;

  // Enqueues the captured work on the backend's stream (CPU: runs it). Returns the callable's
  // status on the CPU; on a GPU only launch failures, since kernels run later. Does not synchronise
  // and does not allocate.
  virtual absl::Status Replay() = 0;

  // What capturing this graph added to the memory in use. A graph that fits into the pool that
  // earlier ones left behind adds 0 to it.
  virtual GraphBytes bytes() const = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;

  // Runs `step` once as warm-up (GPU: on the capture stream, so that lazy initialisation happens
  // outside the capture), then captures it. A failing or throwing step ends the capture properly,
  // leaves the backend and the graphs captured before usable, and its error is returned.
  // Errors: InvalidArgument for an empty callable; the step's own; ResourceExhausted without
  // memory.
  virtual absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      std::function<absl::Status()> step) = 0;

  // What the first Capture() of `step` would add to the memory in use: captures it into a pool of
  // its own, measures, and gives everything back. For sizing other memory before the real capture,
  // against buffers that may be smaller than the real ones but have the captured shapes.
  virtual absl::StatusOr<GraphBytes> TrialCapture(std::function<absl::Status()> step) = 0;
};

}  // namespace reprise

#endif  // GRAPHS_GRAPH_BACKEND_H_
