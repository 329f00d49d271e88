// Counts the captured graphs that still use a block of memory. The owner of the memory checks the
// count before it frees or moves the memory.
//
//   GraphPins pins;
//   // When launches use the memory:
//   REPRISE_RETURN_IF_ERROR(pins.PinIfCaptured(stream).status());
//   ...
//   // Before the memory is replaced:
//   REPRISE_RETURN_IF_ERROR(pins.CheckNone("workspace"));
//
// A captured graph contains addresses, and only the graph's lifetime determines how long it uses
// them. The graph therefore holds the pin: a user object of the CUDA graph, which its clones and
// executables share. CUDA releases the user object after the last of these graphs has been
// destroyed and their launches have completed. The release runs on a thread of CUDA, so it happens
// with a short delay. On the CPU, a graph is the recorded call (graphs/recorded_backend.h), and the
// call holds a Pin.
//
// Pins may outlive the GraphPins. Thread safety: thread-safe. Cost: one driver call, and one user
// object per capture.

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
  // The count includes this pin until the pin and all its copies are destroyed.
  using Pin = std::shared_ptr<const void>;

  GraphPins() = default;
  GraphPins(const GraphPins&) = delete;
  GraphPins& operator=(const GraphPins&) = delete;

  Pin Take() const;

  // If `stream` (a cudaStream_t) is being captured, pins the memory until the graph and everything
  // derived from it are destroyed. Consecutive calls in the same capture add only one pin. Returns
  // CUDA's ID of the capture, which is unique in the process, or 0 if there is no capture. Does
  // nothing in builds without CUDA. Errors: Internal if CUDA fails.
  absl::StatusOr<uint64_t> PinIfCaptured(CUstream_st* stream);

  int64_t count() const { return *count_; }

  // Returns FailedPrecondition with the name `what` while the memory is pinned.
  absl::Status CheckNone(std::string_view what) const;

 private:
  const std::shared_ptr<std::atomic<int64_t>> count_ = std::make_shared<std::atomic<int64_t>>(0);
  std::atomic<uint64_t> last_capture_ = 0;  // CUDA's ID of the last capture; 0: none
};

}  // namespace reprise

#endif  // REPRISE_BASE_GRAPH_PINS_H_
