// The cache slots to which tokens are written: slot = block * block_size + offset, an index of a
// token position in the cache.
//
//   // A sequence in blocks {7, 2} of 4 tokens; its tokens 3, 4, 5 are new:
//   std::array<int64_t, 3> slots;
//   REPRISE_RETURN_IF_ERROR(FillSlotMapping({7, 2}, 4, /*first_token=*/3, absl::MakeSpan(slots)));
//   // slots == {31, 8, 9}
//
// This slot is unrelated to SlotId, which identifies a sequence. A token that is not written has
// slot -1 (kNoSlot).
//
// Thread safety: pure functions.

#ifndef REPRISE_CACHE_TABLES_SLOT_MAPPING_H_
#define REPRISE_CACHE_TABLES_SLOT_MAPPING_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"

namespace reprise {

// The slot of a token that is not written.
inline constexpr int64_t kNoSlot = -1;

// Returns the slot of a token at `offset` within `block`. REQUIRES: 0 <= offset < block_size.
constexpr int64_t SlotOf(BlockId block, int offset, int block_size) {
  return int64_t{block.value()} * block_size + offset;
}

// Fills `slots` with the slots of tokens [first_token, first_token + slots.size()) of a sequence
// with block-table row `row`. A token whose entry is the null block gets kNoSlot: it left the
// window or is padding, and the null block must not be written. Errors, with `slots` unchanged:
// InvalidArgument if block_size < 1, if a token is outside the row, or if an entry is negative.
absl::Status FillSlotMapping(absl::Span<const int32_t> row, int block_size, int64_t first_token,
                             absl::Span<int64_t> slots);

}  // namespace reprise

#endif  // REPRISE_CACHE_TABLES_SLOT_MAPPING_H_
