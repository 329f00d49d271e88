#include "cache/token_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckBlockSize(int block_size) {
  if (block_size >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("block_size must be positive: expected at least 1, got ", block_size));
}

// That `size` cells hold `num_rows` rows of `width`; the last need not be followed by the rest of
// its stride.
absl::Status CheckRows(const char* argument, size_t size, int64_t row_stride, int64_t width,
                       int64_t num_rows) {
  if (width < 0 || row_stride < width) {
    return absl::InvalidArgumentError(
        absl::StrCat(argument, " must have a row_stride that holds a row: expected at least ",
                     width, " >= 0, got ", row_stride));
  }
  const int64_t available = static_cast<int64_t>(size);
  if (num_rows <= 0 || width == 0) return absl::OkStatus();
  if (available >= width && (available - width) / row_stride >= num_rows - 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(argument, " is too small: expected ", num_rows,
                                                 " rows of stride ", row_stride, ", got ", size,
                                                 " cells"));
}

absl::Status CheckRow(const TokenTable& tokens, int64_t row, int32_t request, int64_t start,
                      int64_t len, int block_size, int max_blocks) {
  if (request < 0 || request >= tokens.num_requests) {
    return absl::InvalidArgumentError(absl::StrCat("requests of row ", row,
                                                   " must be one of the table: expected 0 to ",
                                                   tokens.num_requests - 1, ", got ", request));
  }
  if (start < 0 || len < 0 || start + len > tokens.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokens of row ", row, " must be within the table: expected 0 to ",
                     tokens.max_tokens, ", got ", start, " to ", start + len));
  }
  if ((len + block_size - 1) / block_size > max_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("row ", row, " must fit the block table: expected at most ",
                     int64_t{max_blocks} * block_size, " tokens, got ", len));
  }
  const int32_t* const slots = tokens.slots.data() + request * tokens.row_stride + start;
  for (int64_t first = 0; first < len; first += block_size) {
    if (slots[first] < 0 || slots[first] % block_size != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("blocks of row ", row, " must begin at multiples of block_size ", block_size,
                       ": expected so at token ", start + first, ", got slot ", slots[first]));
    }
    for (int64_t t = first + 1; t < std::min(first + block_size, len); ++t) {
      if (slots[t] == slots[first] + (t - first)) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "tokens of a block of row ", row, " must stand at consecutive slots: expected slot ",
          slots[first] + (t - first), " at token ", start + t, ", got ", slots[t]));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status TokensToBlocks(const TokenTable& tokens, const TokenRows& rows, int block_size,
                            const MutablePaddedBlockTable& blocks) {
  REPRISE_RETURN_IF_ERROR(CheckBlockSize(block_size));
  const int64_t num_rows = static_cast<int64_t>(rows.lens.size());
  REPRISE_RETURN_IF_ERROR(CheckRows("slots", tokens.slots.size(), tokens.row_stride,
                                    tokens.max_tokens, tokens.num_requests));
  REPRISE_RETURN_IF_ERROR(
      CheckRows("entries", blocks.entries.size(), blocks.row_stride, blocks.max_blocks, num_rows));
  if (rows.requests.size() != rows.lens.size() ||
      (!rows.starts.empty() && rows.starts.size() != rows.lens.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("requests and starts must have a cell a row: expected ", num_rows, ", got ",
                     rows.requests.size(), " and ", rows.starts.size()));
  }
  if (blocks.seq_lens.size() < rows.lens.size()) {
    return absl::InvalidArgumentError(absl::StrCat("seq_lens is too small: expected at least ",
                                                   num_rows, ", got ", blocks.seq_lens.size()));
  }
  const auto start_of = [&](int64_t row) { return rows.starts.empty() ? 0 : rows.starts[row]; };
  for (int64_t row = 0; row < num_rows; ++row) {
    REPRISE_RETURN_IF_ERROR(CheckRow(tokens, row, rows.requests[row], start_of(row), rows.lens[row],
                                     block_size, blocks.max_blocks));
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t* const slots =
        tokens.slots.data() + rows.requests[row] * tokens.row_stride + start_of(row);
    int32_t* const entries = blocks.entries.data() + row * blocks.row_stride;
    for (int column = 0; column < blocks.max_blocks; ++column) {
      const int64_t first = int64_t{column} * block_size;
      entries[column] = first < rows.lens[row] ? slots[first] / block_size : 0;
    }
    blocks.seq_lens[row] = rows.lens[row];
  }
  return absl::OkStatus();
}

absl::Status BlocksToTokens(const PaddedBlockTable& blocks, int block_size,
                            absl::Span<int32_t> slots, int64_t row_stride, int max_tokens) {
  REPRISE_RETURN_IF_ERROR(CheckBlockSize(block_size));
  const int64_t num_rows = static_cast<int64_t>(blocks.seq_lens.size());
  REPRISE_RETURN_IF_ERROR(
      CheckRows("entries", blocks.entries.size(), blocks.row_stride, blocks.max_blocks, num_rows));
  REPRISE_RETURN_IF_ERROR(CheckRows("slots", slots.size(), row_stride, max_tokens, num_rows));
  for (int64_t row = 0; row < num_rows; ++row) {
    const int64_t most = std::min(int64_t{blocks.max_blocks} * block_size, int64_t{max_tokens});
    if (blocks.seq_lens[row] >= 0 && blocks.seq_lens[row] <= most) continue;
    return absl::InvalidArgumentError(absl::StrCat("seq_lens of row ", row,
                                                   " must fit both tables: expected 0 to ", most,
                                                   ", got ", blocks.seq_lens[row]));
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t* const entries = blocks.entries.data() + row * blocks.row_stride;
    int32_t* const to = slots.data() + row * row_stride;
    for (int token = 0; token < max_tokens; ++token) {
      to[token] = token < blocks.seq_lens[row]
                      ? entries[token / block_size] * block_size + token % block_size
                      : 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise
