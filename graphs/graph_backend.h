// Captures a step on one device and replays it: CUDA graphs on a GPU, the recorded call on a CPU.
//
// A backend owns a memory pool and uses one stream. All its graphs share the pool and the stream,
// so two graphs never run at the same time. GraphSet (graphs/graph_set.h) decides which graph
// serves a step; a backend only captures and replays.
//
//   auto backend = MakeRecordedBackend();              // or CudaGraphBackend::Create(options)
//   auto graph = backend->Capture([=] { return model_step(); });
//   (*graph)->Replay();
//
// The captured callable must read everything that varies between steps from memory at fixed
// addresses. On the CPU, the backend keeps the callable and runs it again. Values that the callable
// holds are therefore frozen at the capture, like kernel arguments. Objects that it refers to must
// outlive the graph, and must not be host values that change.
//
// The callable runs more often than the step: once as warm-up before the capture, and again in the
// replay that follows a capture. It must therefore be idempotent over unchanged buffers. A forward
// pass that writes keys to given slots is idempotent; advancing a counter is not.
//
// Work that cannot be captured runs between two graphs (RunBetweenGraphs). A replay then alternates
// graph launches and such work.
//
// Lifetime: capture any number of graphs, largest first, so that they reuse one pool. Destroy all
// graphs together, before their backend. Thread safety: not thread-safe; one owner.

#ifndef REPRISE_GRAPHS_GRAPH_BACKEND_H_
#define REPRISE_GRAPHS_GRAPH_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

// Measured device memory of one graph. Zero on the CPU.
struct GraphBytes {
  int64_t pool = 0;    // tensors allocated inside the capture; shared with the backend's graphs
  int64_t driver = 0;  // kernel arguments, nodes, local memory: not shared

  int64_t total() const { return pool + driver; }
  friend bool operator==(const GraphBytes&, const GraphBytes&) = default;
};

class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;

  // Enqueues the captured work on the backend's stream (CPU: runs it). On the CPU, returns the
  // callable's status. On a GPU, reports launch failures only, because the kernels run later. Does
  // not synchronise or allocate.
  virtual absl::Status Replay() = 0;

  // Number of graphs that a replay launches: at most 1 plus the number of RunBetweenGraphs() calls.
  // On a GPU, empty graphs are left out.
  virtual int num_graphs() const = 0;

  // Memory that the capture of this graph added. `pool` is 0 if the graph fits into the pool's
  // existing memory.
  virtual GraphBytes bytes() const = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;

  // Runs `step` once as warm-up, then captures it. On a GPU the warm-up runs on the capture stream,
  // so that lazy initialisation happens outside the capture. If the step fails or throws, returns
  // its error; the backend and the existing graphs stay usable.
  // Errors: InvalidArgument for an empty callable; ResourceExhausted if memory runs out; errors of
  // the step.
  virtual absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      std::function<absl::Status()> step) = 0;

  // Called by a step during its capture: ends the current graph and begins another graph. A replay
  // runs `work` between the two graphs, on the host, with the backend's stream current. The capture
  // does not run `work`, because the warm-up has run it. Outside a capture, runs `work` and does
  // nothing else, so a step may call this in either case.
  //
  // The captured graph keeps `work`. Everything that `work` uses must stay at its address as long
  // as the graph exists: buffers of the caller, or tensors of the step. The memory of the step's
  // tensors stays in the pool, so `work` need not hold the tensors. `work` must be idempotent, like
  // the step. The step must join all forked streams before the call. Errors: InvalidArgument for an
  // empty callable; errors of `work`; errors at the end of a capture. The step must return these
  // errors. On a GPU, errors at the end of a capture fail the capture even if the step ignores
  // them.
  virtual absl::Status RunBetweenGraphs(std::function<absl::Status()> work) = 0;

  // Returns the memory that the first Capture() of `step` would add. Captures `step` into a
  // temporary pool, measures the memory and frees everything. Use it to size other memory before
  // the real capture. Buffers may be smaller than the real buffers, but must have the captured
  // shapes.
  virtual absl::StatusOr<GraphBytes> TrialCapture(std::function<absl::Status()> step) = 0;
};

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_BACKEND_H_
