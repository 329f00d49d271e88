// Integer ids that cannot be mixed up: a BlockId is not a SlotId, and neither is a count.
//
//   BlockId block(7);
//   table[column] = block.value();   // to an array that a kernel reads
//   SlotId slot = block;             // does not compile
//
// An id is a name, not a number: ids compare and hash, but have no arithmetic. An id is trivially
// copyable and has the size of its representation, so an array of ids may be read as an array of
// integers.

#ifndef REPRISE_BASE_IDS_H_
#define REPRISE_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <utility>

namespace reprise {

// `Tag` is an incomplete struct that makes the type distinct; it is never defined.
template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;

  // Zero: for arrays that are filled afterwards.
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;
  template <typename H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value_; }

 private:
  Rep value_ = 0;
};

// A block of the KV cache: an index into the block dimension of every tensor that shares the pool.
using BlockId = StrongId<struct BlockIdTag, int32_t>;

// Block 0 fills block-table entries that name no block. It is never allocated; it may be read, but
// its contents mean nothing.
inline constexpr BlockId kNullBlock(0);

// A sequence's index in the state that the device owns; reused after the sequence has left.
using SlotId = StrongId<struct SlotIdTag, int32_t>;

// A sequence on the host; never reused in the life of an engine.
using SequenceId = StrongId<struct SequenceIdTag, int64_t>;

}  // namespace reprise

#endif  // REPRISE_BASE_IDS_H_
