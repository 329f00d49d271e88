// Host memory that the host writes and a device reads later. It is divided into slots, and a slot
// is not overwritten before the device has read it.
//
//   // One fence per slot.
//   REPRISE_ASSIGN_OR_RETURN(StagingRing ring, StagingRing::Create(pinned_memory, fences));
//   {
//     StagingSlot slot = ring.Acquire();   // waits until the slot's last reader has completed
//     std::memcpy(slot.bytes().data(), deltas, size);
//     LaunchRefill(stream, slot.offset_bytes());
//   }                                      // arms the slot's fence, after the launch
//
// Slots are used in round-robin order. States of a slot:
//
//   state    bytes may be    leaves by
//   idle     unspecified     Acquire -> held
//   held     writable        the StagingSlot is submitted or destroyed: its fence is armed -> read
//   read     read-only       the fence completes -> idle
//
// Use one more slot than the number of steps in flight: Acquire() then does not block in the steady
// state.
//
// Thread safety: not thread-safe; one owner. Ownership: the caller owns the memory, pins or maps
// it, and keeps it until the ring is destroyed and all readers have completed. The ring owns the
// fences. Slots stay valid if the ring is moved, but not if it is destroyed. Cost: O(1); does not
// allocate after Create().

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

// The right to write to one slot. The destructor arms the slot's fence, so submit the slot's
// readers first.
class StagingSlot {
 public:
  StagingSlot(StagingSlot&& other) noexcept { *this = std::move(other); }
  StagingSlot& operator=(StagingSlot&& other) noexcept;
  ~StagingSlot() { Submit(); }

  // The slot's memory, slot_bytes() bytes. REQUIRES: not submitted.
  absl::Span<std::byte> bytes() const { return bytes_; }

  // Offset of bytes() in the ring's memory; the same for host and device addresses.
  int64_t offset_bytes() const { return offset_bytes_; }

  // Ends the right to write early, before the destructor. Later calls do nothing.
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
  // Divides `memory` into fences.size() slots of equal size. Each slot has the alignment of
  // `memory` if that alignment divides the size of a slot.
  // Errors: InvalidArgument if `fences` is empty, a fence is null, or memory.size() is not a
  // positive multiple of fences.size().
  static absl::StatusOr<StagingRing> Create(absl::Span<std::byte> memory,
                                            std::vector<std::unique_ptr<Fence>> fences);

  StagingRing(StagingRing&&) = default;
  StagingRing& operator=(StagingRing&&) = default;

  // Returns the next slot, with unspecified contents. Blocks until the slot's last readers have
  // completed. REQUIRES: the slot returned num_slots() calls ago has been submitted.
  StagingSlot Acquire();

  // Like Acquire(), but does not block: returns nullopt if the next slot is still being read.
  std::optional<StagingSlot> TryAcquire();

  int num_slots() const { return static_cast<int>(states_.size()); }
  int64_t slot_bytes() const { return slot_bytes_; }

 private:
  StagingRing(absl::Span<std::byte> memory, std::vector<StagingSlot::State> states);

  StagingSlot TakeNext();

  absl::Span<std::byte> memory_;
  std::vector<StagingSlot::State> states_;  // never resized, because slots point into it
  int64_t slot_bytes_ = 0;
  int next_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_BASE_STAGING_RING_H_
