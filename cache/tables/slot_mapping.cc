#include "reprise/cache/tables/slot_mapping.h"

#include "absl/strings/str_cat.h"

namespace reprise {

absl::Status FillSlotMapping(absl::Span<const int32_t> row, int block_size, int64_t first_token,
                             absl::Span<int64_t> slots) {
  if (block_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_size must be positive: expected at least 1, got ", block_size));
  }
  const int64_t num_row_tokens = static_cast<int64_t>(row.size()) * block_size;
  const int64_t num_tokens = static_cast<int64_t>(slots.size());
  if (first_token < 0 || first_token > num_row_tokens - num_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens must be within the row: expected ", num_tokens, " tokens within [0, ",
                     num_row_tokens, "), got a start of ", first_token));
  }
  if (num_tokens == 0) return absl::OkStatus();
  const int64_t last_column = (first_token + num_tokens - 1) / block_size;
  for (int64_t column = first_token / block_size; column <= last_column; ++column) {
    if (row[column] < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "row must hold blocks: expected at least 0 in column ", column, ", got ", row[column]));
    }
  }

  int64_t column = first_token / block_size;
  int offset = static_cast<int>(first_token % block_size);
  for (int64_t& slot : slots) {
    const BlockId block(row[column]);
    slot = block == kNullBlock ? kNoSlot : SlotOf(block, offset, block_size);
    if (++offset == block_size) {
      offset = 0;
      ++column;
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise
