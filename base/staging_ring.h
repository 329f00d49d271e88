// Host memory that the host writes and a device reads later, in slots that are never overwritten
// before they are read.
//
//   // A fence a slot.
//   REPRISE_ASSIGN_OR_RETURN(StagingRing ring, StagingRing::Create(pinned_memory, fences));
//   {
//     StagingSlot slot = ring.Acquire();   // waits until this slot's last reader is done
//     std::memcpy(slot.bytes().data(), deltas, size);
//     LaunchRefill(stream, slot.offset_bytes());
//   }                                      // arms the slot's fence, after the launch
//
// Slots are handed out in turn. States of a slot:
//
//   state    bytes may be    leaves by
//   idle     unspecified     Acquire -> held
//   held     written         the StagingSlot ends: its fence is armed -> read
//   read     only read       the fence passes -> idle
//
// Use one slot more than the steps that may be in flight; then Acquire() does not block in steady
// state.
//
// Thread safety: none; one owner. Ownership: the caller owns the memory, pins or maps it, and keeps
// it until ring and readers are gone; the ring owns the fences. Slots stay valid when the ring is
// moved, not when it is destroyed. Cost: O(1), no allocation after Create().

#ifndef REPRISE_BASE_STAGING_RING_H_
#define REPRISE_BASE_STAGING_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/fence.h"

namespace reprise {

class StagingRing;

// The right to write one slot. Its destructor arms the slot's fence: submit the slot's readers
// before.
class StagingSlot {
 public:
  StagingSlot(StagingSlot&& other) noexcept { *this = std::move(other); }
  StagingSlot& operator=(StagingSlot&& other) noexcept;
  ~StagingSlot() { Submit(); }

  // The slot's memory, of slot_bytes(). REQUIRES: not submitted.
  absl::Span<std::byte> bytes() const { return bytes_; }

  // Offset of bytes() in the ring's memory, for the host's address and for a device's.
  int64_t offset_bytes() const { return offset_bytes_; }

  // Ends the right to write before the object ends. Later calls do nothing.
  void Submit();

 private:
  friend class StagingRing;
  struct State {
    std::unique_ptr<Fence> fence;
    bool held = false;
  };

  StagingSlot(State* state, absl::Span<std::byte> bytes, int64_t offset_bytes)
      : state_(state), bytes_(bytes), offset_bytes_(offset_bytes) {}

  State* state_ = nullptr;  // null: submitted or moved from
  absl::Span<std::byte> bytes_;
  int64_t offset_bytes_ = 0;
};

class StagingRing {
 public:
  // Divides `memory` into fences.size() slots of equal size; the caller's alignment holds for each
  // slot if it divides the slot's size. Errors: InvalidArgument if `fences` is empty, a fence is
  // null, or memory.size() is not a positive multiple of fences.size().
  static absl::StatusOr<StagingRing> Create(absl::Span<std::byte> memory,
                                            std::vector<std::unique_ptr<Fence>> fences);

  StagingRing(StagingRing&&) = default;
  StagingRing& operator=(StagingRing&&) = default;

  // The next slot, its content unspecified; blocks until its last readers are done.
  // REQUIRES: the slot handed out num_slots() calls ago is submitted.
  StagingSlot Acquire();

  // As Acquire(), but returns nullopt, and does not block, if the next slot is still being read.
  std::optional<StagingSlot> TryAcquire();

  int num_slots() const { return static_cast<int>(states_.size()); }
  int64_t slot_bytes() const { return slot_bytes_; }

 private:
  StagingRing(absl::Span<std::byte> memory, std::vector<StagingSlot::State> states);

  StagingSlot TakeNext();

  absl::Span<std::byte> memory_;
  std::vector<StagingSlot::State> states_;  // never resized: slots point into it
  int64_t slot_bytes_ = 0;
  int next_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_STAGING_RING_H_
