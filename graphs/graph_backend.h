// Capture and replay of a step on one device: CUDA graphs on a GPU, the recorded call on a CPU.
//
// A backend owns a memory pool and uses one stream; its graphs share both, so no two of them run at
// once. GraphSet (graphs/graph_set.h) decides which graph serves a step; a backend only captures
// and replays.
//
//   auto backend = MakeRecordedBackend();              // or CudaGraphBackend::Create(options)
//   auto graph = backend->Capture([=] { return model_step(); });
//   (*graph)->Replay();
//
// The captured callable must read everything that varies from step to step from memory at unchanged
// addresses. On the CPU the callable itself is kept and run again, so the values that it holds are
// frozen at capture, as kernel arguments are; objects that it refers to must outlive the graph and
// must not be host values that change.
//
// The callable runs more often than the step: once as warm-up before the capture, and the replay
// after a capture does the same work again. It must therefore be idempotent over unchanged buffers:
// a forward pass that writes keys to given slots is idempotent, advancing a counter is not.
//
// What cannot be captured runs between two graphs (RunBetweenGraphs): a replay is then a launch, the
// work, a launch, and so on.
//
// Life: capture any number of graphs, largest first (they then reuse one pool); destroy all graphs
// together, before their backend. Thread safety: none; one owner.

#ifndef REPRISE_GRAPHS_GRAPH_BACKEND_H_
#define REPRISE_GRAPHS_GRAPH_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

// Device memory of one graph, measured. Zero on the CPU.
struct GraphBytes {
  int64_t pool = 0;    // tensors made inside the capture: shared with the backend's other graphs
  int64_t driver = 0;  // kernel arguments, nodes, local memory: not shared

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

  // How many graphs a replay launches: 1, and 1 more for each work between two of them.
  virtual int num_graphs() const = 0;

  // The memory that capturing this graph added. A graph that fits into the pool of earlier ones
  // adds 0 to the pool.
  virtual GraphBytes bytes() const = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;

  // Runs `step` once as warm-up (GPU: on the capture stream, so that lazy initialisation happens
  // outside the capture), then captures it. If the step fails or throws, its error is returned; the
  // backend and the graphs captured before stay usable.
  // Errors: InvalidArgument for an empty callable; the step's own; ResourceExhausted without
  // memory.
  virtual absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      std::function<absl::Status()> step) = 0;

  // For a step that is being captured: ends the graph here and begins another one; a replay runs
  // `work` between the two, on the host, with the backend's stream current. The capture itself does
  // not run it: the warm-up has. At any other time runs it, and nothing more: so steps call this
  // whether they are captured or not.
  //
  // `work` is kept as long as the captured graph, and what it uses must stay at its address as
  // long: buffers, or tensors of the step, whose memory belongs to the pool for good, so that `work`
  // need not hold them. It must be idempotent as the step is. Streams that the step forked must be
  // joined before.
  // Errors: InvalidArgument for an empty callable; the work's; those of the end of a capture. The
  // step must return them; a capture fails even if it does not.
  virtual absl::Status RunBetweenGraphs(std::function<absl::Status()> work) = 0;

  // The memory that the first Capture() of `step` would add: captures it into a pool of its own,
  // measures, and frees everything. Use it to size other memory before the real capture, with
  // buffers that may be smaller than the real ones but have the captured shapes.
  virtual absl::StatusOr<GraphBytes> TrialCapture(std::function<absl::Status()> step) = 0;
};

}  // namespace reprise

#endif  // REPRISE_GRAPHS_GRAPH_BACKEND_H_
