#include "attention/token_table.h"

#include <algorithm>
#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckHolds(absl::string_view name, int64_t got, int64_t needed) {
  if (got >= needed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected at least ", needed, ", got ", got));
}

absl::Status CheckBetween(absl::string_view name, size_t index, int64_t got, int64_t most) {
  if (got >= 0 && got <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, "[", index, "]: expected 0 to ", most, ", got ", got));
}

// The block whose slots begin with those of tokens [first, end) of `slots`.
absl::StatusOr<int32_t> BlockOf(const int32_t* slots, int first, int end, int block_size) {
  const int32_t block = slots[first] / block_size;
  for (int token = first; token < end; ++token) {
    const int64_t expected = int64_t{block} * block_size + (token - first);
    if (slots[first] >= 0 && slots[token] == expected) continue;
    return absl::InvalidArgumentError(absl::StrCat("token ", token, ": expected slot ", expected,
                                                   " of block ", block, ", got ", slots[token]));
  }
  return block;
}

}  // namespace

absl::Status FillBlocksOfTokens(const TokenTableView& table, absl::Span<const int32_t> table_row,
                                absl::Span<const int32_t> lens, int block_size,
                                const MutablePaddedBlockTable& padded) {
  const auto num_rows = static_cast<int64_t>(lens.size());
  REPRISE_RETURN_IF_ERROR(CheckHolds("block_size", block_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckHolds("padded.row_stride", padded.row_stride, padded.max_blocks));
  REPRISE_RETURN_IF_ERROR(
      CheckHolds("padded.seq_lens", static_cast<int64_t>(padded.seq_lens.size()), num_rows));
  REPRISE_RETURN_IF_ERROR(
      CheckHolds("padded.entries", static_cast<int64_t>(padded.entries.size()),
                 num_rows == 0 ? 0 : (num_rows - 1) * padded.row_stride + padded.max_blocks));
  if (!table_row.empty()) {
    REPRISE_RETURN_IF_ERROR(
        CheckHolds("table_row", static_cast<int64_t>(table_row.size()), num_rows));
  }
  const int64_t longest =
      std::min<int64_t>(table.max_tokens, int64_t{padded.max_blocks} * block_size);
  for (size_t i = 0; i < lens.size(); ++i) {
    const int64_t row = table_row.empty() ? static_cast<int64_t>(i) : table_row[i];
    REPRISE_RETURN_IF_ERROR(CheckBetween("table_row", i, row, table.num_tables - 1));
    REPRISE_RETURN_IF_ERROR(CheckBetween("lens", i, lens[i], longest));
    const int32_t* slots = table.slots + row * table.row_stride;
    int32_t* out = padded.entries.data() + static_cast<int64_t>(i) * padded.row_stride;
    int column = 0;
    for (int first = 0; first < lens[i]; first += block_size) {
      const absl::StatusOr<int32_t> block =
          BlockOf(slots, first, std::min(lens[i], first + block_size), block_size);
      if (!block.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("table row ", row, ", ", block.status().message()));
      }
      out[column++] = *block;
    }
    std::fill(out + column, out + padded.max_blocks, 0);
    padded.seq_lens[i] = lens[i];
  }
  return absl::OkStatus();
}

}  // namespace reprise
