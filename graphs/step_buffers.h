// The persistent buffers of a step: planned by name at their maximum size, then placed in one piece
// of memory at addresses that do not change while a graph may read them.
//
//   StepBuffers buffers;
//   REPRISE_ASSIGN_OR_RETURN(StepBuffer<int32_t> seq_lens, buffers.Plan<int32_t>("seq_lens", 256));
//   REPRISE_ASSIGN_OR_RETURN(StepBuffer<int64_t> slots, buffers.Plan<int64_t>("slots", 2048));
//   ... memory of buffers.bytes(): a CUDA tensor, base/mapped_buffer.h, std::aligned_alloc ...
//   REPRISE_RETURN_IF_ERROR(buffers.Bind(memory, buffers.bytes()));
//   refill_args.seq_lens = buffers.data(seq_lens);                    // int32_t*
//   buffers.AddTo(fingerprint);
//
// States:
//
//   state      Plan      data, span, AddTo   leaves by
//   planning   allowed   refused             Bind -> bound
//   bound      refused   allowed             Unbind -> planning
//
// While bound, no buffer is added, resized or moved: a captured graph holds the addresses. Call
// Unbind() at the end, after the graphs are gone.
//
// The caller owns the memory, on the host or on a device; it must outlive the binding. Only
// Poison() reads or writes it. Thread safety: none.

#ifndef REPRISE_GRAPHS_STEP_BUFFERS_H_
#define REPRISE_GRAPHS_STEP_BUFFERS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/status_macros.h"
#include "reprise/graphs/fingerprint.h"

namespace reprise {

// Identifies a planned buffer of T to the StepBuffers that planned it.
template <typename T>
class StepBuffer {
 private:
  friend class StepBuffers;
  explicit StepBuffer(int index) : index_(index) {}
  int index_;
};

class StepBuffers {
 public:
  // Each buffer begins at a multiple of it, for vector loads and coalesced accesses. cudaMalloc and
  // LibTorch's CUDA tensors align the whole to it; LibTorch's host tensors do not.
  static constexpr int64_t kAlignment = 256;

  StepBuffers() = default;
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  // Adds `count` elements of T under a new name; 0 elements are allowed and take no
  // memory. Errors, with the plan unchanged: FailedPrecondition while bound; InvalidArgument for an
  // empty or repeated name, a negative count, or a total beyond int64.
  template <typename T>
  absl::StatusOr<StepBuffer<T>> Plan(std::string_view name, int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>, "buffers are raw memory");
    static_assert(kAlignment % alignof(T) == 0);
    REPRISE_ASSIGN_OR_RETURN(const int index, PlanBytes(name, count, sizeof(T)));
    return StepBuffer<T>(index);
  }

  // The memory that the plan takes so far, a multiple of kAlignment.
  int64_t bytes() const { return bytes_; }

  // Puts the buffers into memory of `memory_bytes`. Errors, unbound as before: FailedPrecondition
  // if bound already; InvalidArgument if memory is null (unless bytes() is 0), not aligned to
  // kAlignment, or smaller than bytes().
  absl::Status Bind(void* memory, int64_t memory_bytes);

  // Forgets the memory. Graphs that use it must be gone.
  void Unbind();

  bool is_bound() const { return is_bound_; }

  // The bound memory of bytes(). REQUIRES: is_bound().
  void* memory() const;

  // A buffer's address, or null if it has no elements. REQUIRES: is_bound(), planned here.
  template <typename T>
  T* data(StepBuffer<T> buffer) const {
    return static_cast<T*>(Address(buffer.index_));
  }

  // A buffer's elements; access them only on the side of the memory. REQUIRES: as data().
  template <typename T>
  absl::Span<T> span(StepBuffer<T> buffer) const {
    return absl::MakeSpan(data(buffer), static_cast<size_t>(buffers_[buffer.index_].count));
  }

  // Elements of a buffer, bound or not. REQUIRES: planned here.
  template <typename T>
  int64_t count(StepBuffer<T> buffer) const {
    return At(buffer.index_).count;
  }

  // Lists each buffer's address and size. REQUIRES: is_bound(). Allocates as Fingerprint does.
  void AddTo(Fingerprint& fingerprint) const;

  // Fills the whole memory, gaps between buffers included, so that tests see values that were never
  // written. REQUIRES: is_bound(), to memory of the host.
  void Poison(std::byte value) const;

 private:
  struct Buffer {
    std::string name;
    std::string bytes_name;  // "<name>.bytes"
    int64_t offset = 0;
    int64_t count = 0;
    int64_t bytes = 0;
  };

  absl::StatusOr<int> PlanBytes(std::string_view name, int64_t count, int64_t element_bytes);
  const Buffer& At(int index) const;
  void* Address(int index) const;

  std::vector<Buffer> buffers_;
  absl::flat_hash_map<std::string, int> index_;  // by name
  int64_t bytes_ = 0;
  bool is_bound_ = false;
  std::byte* memory_ = nullptr;
};

}  // namespace reprise

#endif  // REPRISE_GRAPHS_STEP_BUFFERS_H_
