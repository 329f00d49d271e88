// Counts the captured graphs that still use a piece of memory. Its owner checks the count before it
// frees or moves the memory.
//
//   GraphPins pins;
//   // When launches take its address:
//   REPRISE_RETURN_IF_ERROR(pins.PinIfCaptured(stream).status());
//   ...
//   // Before it is replaced:
//   REPRISE_RETURN_IF_ERROR(pins.CheckNone("workspace"));
//
// A captured graph contains addresses, and only the graph knows how long it lives. So the graph
// itself holds the pin: a user object of the CUDA graph that is being captured, which its clones
// and executables share. CUDA releases it once the last of them is destroyed and their launches
// have ended; it does so on a thread of its own, so a moment later. On the CPU, where a graph is
// the recorded call (graphs/recorded_backend.h), the call holds a Pin.
//
// Pins may outlive the GraphPins. Thread safety: safe. Cost: a call to the driver; one user object
// for each capture.

#ifndef REPRISE_BASE_GRAPH_PINS_H_
#define REPRISE_BASE_GRAPH_PINS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

class GraphPins {
 public:
  // Is counted as long as it or a copy of it lives.
  using Pin = std::shared_ptr<const void>;

  GraphPins() = default;
  GraphPins(const GraphPins&) = delete;
  GraphPins& operator=(const GraphPins&) = delete;

  Pin Take() const;

  // If `stream` (a cudaStream_t) is being captured, pins the memory until the graph and everything
  // made from it are destroyed; further calls in the same capture add no pin. Builds without CUDA:
  // does nothing. Returns CUDA's id of the capture, which is unique in the process, or 0.
  // Errors: Internal if CUDA refuses.
  absl::StatusOr<uint64_t> PinIfCaptured(CUstream_st* stream);

  int64_t count() const { return *count_; }

  // FailedPrecondition, naming `what`, while the memory is pinned.
  absl::Status CheckNone(std::string_view what) const;

 private:
  const std::shared_ptr<std::atomic<int64_t>> count_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<uint64_t> last_capture_ = 0;  // CUDA's id of it; 0: none
};

}  // namespace reprise

#endif  // REPRISE_BASE_GRAPH_PINS_H_
