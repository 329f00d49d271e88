// How a step is captured and replayed on one device: CUDA graphs on a GPU, the recorded call on a CPU.
//
// A backend owns a stream and a memory pool; its graphs share both, so no two of them run at once. GraphSet
// (graphs/graph_set.h) decides which graph serves a step; a backend only captures and replays.
//
//   auto backend = MakeRecordedBackend();                     // or MakeCudaGraphBackend(stream)
//   auto graph = backend->Capture([=] { return model_step(); });
//   (*graph)->Replay();
//
// The captured callable must take everything that varies from step to step from memory at unchanged addresses. On the CPU the
// callable itself is kept and run again, so whatever it holds by value is frozen at capture, as kernel
// arguments are; what it holds by reference must outlive the graph and must not be a host value that changes.
//
// Life: capture any number of graphs, largest first (they then reuse one pool); destroy all graphs before their
// backend, together. Thread safety: none; one owner.

#ifndef GRAPHS_GRAPH_BACKEND_H_
#define GRAPHS_GRAPH_BACKEND_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

class CapturedGraph {
 public:
  virtual ~CapturedGraph() = default;

  // Enqueues the captured work on the backend's stream (CPU: runs it). Returns the callable's status on the CPU;
  // on a GPU only launch failures, since kernels run later.
  virtual absl::Status Replay() = 0;

  // Device memory that capturing added to the pool and the driver, measured. 0 on the CPU.
  virtual int64_t bytes() const = 0;
};

class GraphBackend {
 public:
  virtual ~GraphBackend() = default;

  // Runs `step` once as warm-up (GPU: on the capture stream, so that lazy initialisation happens outside the capture), then captures it. A failing or
  // throwing step ends the capture properly, leaves the backend usable and returns its error.
  virtual absl::StatusOr<std::unique_ptr<CapturedGraph>> Capture(
      std::function<absl::Status()> step) = 0;
};

// The CPU backend: keeps the call.
std::unique_ptr<GraphBackend> MakeRecordedBackend();

}  // namespace reprise

#endif  // GRAPHS_GRAPH_BACKEND_H_
