// The CPU form of a captured graph: a replay runs the recorded call again.
//
// Follows the rules of CUDA graphs without a GPU: values that the call holds are frozen at the
// capture, and buffers are read at the replay. A test that scrambles every host value between
// capture and replay therefore finds values that a GPU would read only at the capture.
//
//   auto backend = MakeRecordedBackend();
//   auto graph = backend->Capture([rows = 16, step] { return step->Run(rows); });
//
// Graphs use no device memory. An exception of the call, at capture or replay, is returned as a
// Status. Thread safety: not thread-safe.

#ifndef REPRISE_GRAPHS_RECORDED_BACKEND_H_
#define REPRISE_GRAPHS_RECORDED_BACKEND_H_

#include <memory>

#include "reprise/graphs/graph_backend.h"

namespace reprise {

std::unique_ptr<GraphBackend> MakeRecordedBackend();

}  // namespace reprise

#endif  // REPRISE_GRAPHS_RECORDED_BACKEND_H_
