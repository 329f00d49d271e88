// The CPU form of a captured graph: the recorded call, which a replay runs again.
//
// It follows the rules of a CUDA graph without a GPU: values that the call holds are frozen at
// capture, and buffers are read when it is replayed. A test that scrambles every host value between
// capture and replay therefore finds a value that a GPU would have read only once.
//
//   auto backend = MakeRecordedBackend();
//   auto graph = backend->Capture([rows = 16, step] { return step->Run(rows); });
//
// Graphs cost no device memory. An exception of the call, at capture or at replay, becomes a
// Status. Thread safety: none.

#ifndef REPRISE_GRAPHS_RECORDED_BACKEND_H_
#define REPRISE_GRAPHS_RECORDED_BACKEND_H_

#include <memory>

#include "reprise/graphs/graph_backend.h"

namespace reprise {

std::unique_ptr<GraphBackend> MakeRecordedBackend();

}  // namespace reprise

#endif  // REPRISE_GRAPHS_RECORDED_BACKEND_H_
