#include "cache/block_table_formats.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

int64_t BlocksFor(int64_t seq_len, int block_size) {
  return (seq_len + block_size - 1) / block_size;
}

absl::Status CheckBlockSize(int block_size) {
  if (block_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("block_size must be positive: expected at least 1, got ", block_size));
}

// That `num_entries` hold `num_rows` rows of a padded table.
absl::Status CheckTable(size_t num_entries, int64_t row_stride, int max_blocks, int64_t num_rows) {
  if (max_blocks < 0 || row_stride < max_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("row_stride must hold a row: expected at least max_blocks ", max_blocks,
                     " >= 0, got ", row_stride));
  }
  // The last row need not be followed by the rest of its stride.
  const int64_t num_available = static_cast<int64_t>(num_entries);
  const bool holds_rows =
      num_rows == 0 ||
      (num_available >= max_blocks &&
       (num_rows == 1 ||
        (num_available - max_blocks) / std::max<int64_t>(row_stride, 1) >= num_rows - 1));
  if (holds_rows || max_blocks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("entries must hold the table: expected ", num_rows,
                                                 " rows of stride ", row_stride, ", got ",
                                                 num_entries, " entries"));
}

absl::Status TooSmall(const char* argument, int64_t expected, size_t got) {
  return absl::InvalidArgumentError(
      absl::StrCat(argument, " is too small: expected at least ", expected, ", got ", got));
}

// The rows of a packed table, proved to be one.
absl::Status CheckPacked(const PackedBlockTable& packed, int block_size) {
  const size_t num_rows = packed.last_block_len.size();
  const absl::Span<const int32_t> indptr = packed.block_indptr;
  if (indptr.size() != num_rows + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_indptr must be [num_rows + 1]: expected [", num_rows + 1, "], got [",
                     indptr.size(), "]"));
  }
  if (indptr[0] != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("block_indptr must start at 0: expected 0, got ", indptr[0]));
  }
  for (size_t row = 0; row < num_rows; ++row) {
    if (indptr[row + 1] < indptr[row]) {
      return absl::InvalidArgumentError(
          absl::StrCat("block_indptr must not decrease: expected at least ", indptr[row],
                       " after row ", row, ", got ", indptr[row + 1]));
    }
    const int32_t last_block_len = packed.last_block_len[row];
    const bool is_empty = indptr[row + 1] == indptr[row];
    if (is_empty ? last_block_len != 0 : last_block_len < 1 || last_block_len > block_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("last_block_len of row ", row, " is out of range: expected ",
                       is_empty ? "0 for an empty row" : absl::StrCat("1 to ", block_size),
                       ", got ", last_block_len));
    }
  }
  if (static_cast<size_t>(indptr[num_rows]) > packed.block_indices.size()) {
    return TooSmall("block_indices", indptr[num_rows], packed.block_indices.size());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> PackBlockTable(const PaddedBlockTable& padded, int block_size,
                                   const MutablePackedBlockTable& packed) {
  REPRISE_RETURN_IF_ERROR(CheckBlockSize(block_size));
  const int64_t num_rows = static_cast<int64_t>(padded.seq_lens.size());
  REPRISE_RETURN_IF_ERROR(
      CheckTable(padded.entries.size(), padded.row_stride, padded.max_blocks, num_rows));
  int64_t num_indices = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t seq_len = padded.seq_lens[row];
    if (seq_len < 0 || BlocksFor(seq_len, block_size) > padded.max_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("seq_lens of row ", row, " must fit the table: expected 0 to ",
                       int64_t{padded.max_blocks} * block_size, ", got ", seq_len));
    }
    num_indices += BlocksFor(seq_len, block_size);
  }
  if (static_cast<int64_t>(packed.block_indptr.size()) < num_rows + 1) {
    return TooSmall("block_indptr", num_rows + 1, packed.block_indptr.size());
  }
  if (static_cast<int64_t>(packed.last_block_len.size()) < num_rows) {
    return TooSmall("last_block_len", num_rows, packed.last_block_len.size());
  }
  if (num_indices > std::numeric_limits<int32_t>::max() ||
      num_indices > static_cast<int64_t>(packed.block_indices.size())) {
    return TooSmall("block_indices", num_indices, packed.block_indices.size());
  }

  int32_t next = 0;
  packed.block_indptr[0] = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t seq_len = padded.seq_lens[row];
    const int num_blocks = static_cast<int>(BlocksFor(seq_len, block_size));
    const int32_t* entries = padded.entries.data() + row * padded.row_stride;
    std::copy_n(entries, num_blocks, packed.block_indices.data() + next);
    next += num_blocks;
    packed.block_indptr[row + 1] = next;
    packed.last_block_len[row] = num_blocks == 0 ? 0 : seq_len - (num_blocks - 1) * block_size;
  }
  return next;
}

absl::Status UnpackBlockTable(const PackedBlockTable& packed, int block_size,
                              const MutablePaddedBlockTable& padded) {
  REPRISE_RETURN_IF_ERROR(CheckBlockSize(block_size));
  REPRISE_RETURN_IF_ERROR(CheckPacked(packed, block_size));
  const int64_t num_rows = static_cast<int64_t>(packed.last_block_len.size());
  REPRISE_RETURN_IF_ERROR(
      CheckTable(padded.entries.size(), padded.row_stride, padded.max_blocks, num_rows));
  if (static_cast<int64_t>(padded.seq_lens.size()) < num_rows) {
    return TooSmall("seq_lens", num_rows, padded.seq_lens.size());
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const int num_blocks = packed.block_indptr[row + 1] - packed.block_indptr[row];
    if (num_blocks > padded.max_blocks) {
      return absl::InvalidArgumentError(
          absl::StrCat("row ", row, " must fit the table: expected at most ", padded.max_blocks,
                       " blocks, got ", num_blocks));
    }
    if (int64_t{num_blocks} * block_size > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(absl::StrCat("row ", row, " is too long for seq_lens: got ",
                                                     num_blocks, " blocks of ", block_size,
                                                     " tokens"));
    }
  }

  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t first = packed.block_indptr[row];
    const int num_blocks = packed.block_indptr[row + 1] - first;
    int32_t* entries = padded.entries.data() + row * padded.row_stride;
    std::copy_n(packed.block_indices.data() + first, num_blocks, entries);
    std::fill(entries + num_blocks, entries + padded.max_blocks, kNullBlock.value());
    padded.seq_lens[row] =
        num_blocks == 0 ? 0 : (num_blocks - 1) * block_size + packed.last_block_len[row];
  }
  return absl::OkStatus();
}

}  // namespace reprise
