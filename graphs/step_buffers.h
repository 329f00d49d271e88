// The persistent buffers of a step. Buffers are planned by name at their maximum size, then placed
// in one block of memory at addresses that do not change while a graph may read them.
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
// While bound, buffers cannot be added, resized or moved, because captured graphs hold their
// addresses. Call Unbind() at the end, after all graphs have been destroyed.
//
// The caller owns the memory, on the host or on a device; it must outlive the binding. Only
// Poison() writes to it. Thread safety: not thread-safe.

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

// Identifies a planned buffer with elements of type T. Valid only for the StepBuffers that planned
// it.
template <typename T>
class StepBuffer {
 private:
  friend class StepBuffers;
  explicit StepBuffer(int index) : index_(index) {}
  int index_;
};

class StepBuffers {
 public:
  // Alignment of each buffer in bytes, for vector loads and coalesced accesses. cudaMalloc and
  // LibTorch's CUDA tensors have this alignment; LibTorch's host tensors do not.
  static constexpr int64_t kAlignment = 256;

  StepBuffers() = default;
  StepBuffers(const StepBuffers&) = delete;
  StepBuffers& operator=(const StepBuffers&) = delete;

  // Adds a buffer of `count` elements of T under a new name. 0 elements are allowed and take no
  // memory.
  // Errors, which leave the plan unchanged: FailedPrecondition while bound; InvalidArgument for an
  // empty or repeated name, a negative count, or a total beyond int64.
  template <typename T>
  absl::StatusOr<StepBuffer<T>> Plan(std::string_view name, int64_t count) {
    static_assert(std::is_trivially_copyable_v<T>, "buffers are raw memory");
    static_assert(kAlignment % alignof(T) == 0);
    REPRISE_ASSIGN_OR_RETURN(const int index, PlanBytes(name, count, sizeof(T)));
    return StepBuffer<T>(index);
  }

  // Bytes of the current plan, a multiple of kAlignment.
  int64_t bytes() const { return bytes_; }

  // Places the buffers in `memory`, which has `memory_bytes` bytes.
  // Errors, which leave the buffers unbound: InvalidArgument if memory is null (unless bytes() is
  // 0), not aligned to kAlignment, or smaller than bytes(). FailedPrecondition if already bound;
  // the binding then stays.
  absl::Status Bind(void* memory, int64_t memory_bytes);

  // Ends the binding; the caller may then free the memory. Graphs that use it must have been
  // destroyed.
  void Unbind();

  bool is_bound() const { return is_bound_; }

  // The bound memory, of bytes() bytes. REQUIRES: is_bound().
  void* memory() const;

  // A buffer's address, or null if it has no elements. REQUIRES: is_bound(); planned by this
  // object.
  template <typename T>
  T* data(StepBuffer<T> buffer) const {
    return static_cast<T*>(Address(buffer.index_));
  }

  // A buffer's elements. Access them only on the device of the memory. REQUIRES: see data().
  template <typename T>
  absl::Span<T> span(StepBuffer<T> buffer) const {
    return absl::MakeSpan(data(buffer), static_cast<size_t>(buffers_[buffer.index_].count));
  }

  // Number of elements of a buffer, bound or not. REQUIRES: planned by this object.
  template <typename T>
  int64_t count(StepBuffer<T> buffer) const {
    return At(buffer.index_).count;
  }

  // Adds each buffer's address and size to `fingerprint`. May allocate (graphs/fingerprint.h).
  // REQUIRES: is_bound().
  void AddTo(Fingerprint& fingerprint) const;

  // Sets every byte, including gaps between buffers, so that tests detect reads of memory that was
  // never written. REQUIRES: bound to host memory.
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
