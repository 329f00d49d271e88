// Distinct types for integer IDs: a BlockId does not convert to a SlotId or to a count.
//
//   BlockId block(7);
//   table[column] = block.value();   // for an array that a kernel reads
//   SlotId slot = block;             // does not compile
//
// IDs compare and hash, but have no arithmetic. An ID is trivially copyable and has the size of its
// representation, so an array of IDs may be read as an array of integers.

#ifndef REPRISE_BASE_IDS_H_
#define REPRISE_BASE_IDS_H_

#include <compare>
#include <cstdint>
#include <ostream>
#include <utility>

namespace reprise {

// `Tag` makes the type distinct: an incomplete struct that is never defined.
template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;

  // Zero, for arrays that are filled later.
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

// A block of the KV cache: an index into the block dimension of all tensors of a pool.
using BlockId = StrongId<struct BlockIdTag, int32_t>;

// Block 0 fills block-table entries without a block. It is never allocated. It may be read, but its
// contents are meaningless.
inline constexpr BlockId kNullBlock(0);

// Index of a sequence in the state on the device; reused after the sequence has left.
using SlotId = StrongId<struct SlotIdTag, int32_t>;

// ID of a sequence on the host; never reused during the lifetime of an engine.
using SequenceId = StrongId<struct SequenceIdTag, int64_t>;

}  // namespace reprise

#endif  // REPRISE_BASE_IDS_H_
