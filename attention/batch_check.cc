#include "reprise/attention/batch_check.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/attention/visibility.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// Checks that `value`, name[index], is in [least, most]; messages call `most` `limit`.
absl::Status CheckElement(absl::string_view name, int64_t index, int64_t value, int64_t least,
                          int64_t most, absl::string_view limit) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, "[", index, "]: expected ", least, " to ",
                                                 most, " (", limit, "), got ", value));
}

// Checks prefix sums, from 0, of lengths up to `longest`, with a total of at most `capacity`.
absl::Status CheckStartLoc(absl::string_view name, const int32_t* loc, int num_rows, int longest,
                           absl::string_view longest_name, int capacity,
                           absl::string_view capacity_name) {
  REPRISE_RETURN_IF_ERROR(CheckElement(name, 0, loc[0], 0, 0, "the start"));
  for (int r = 0; r < num_rows; ++r) {
    REPRISE_RETURN_IF_ERROR(
        CheckElement(name, r + 1, loc[r + 1], loc[r], int64_t{loc[r]} + longest, longest_name));
  }
  return CheckElement(name, num_rows, loc[num_rows], 0, capacity, capacity_name);
}

// Checks that the mask of row `r` is within custom_mask.
template <typename Batch>
absl::Status CheckMask(const Batch& batch, int r, const BatchRow& row) {
  if (!batch.custom_mask || batch.custom_mask_offset[r] == -1) return absl::OkStatus();
  const int64_t num_bytes = (int64_t{row.query_len} * row.seq_len + 7) / 8;
  return CheckElement("custom_mask_offset", r, batch.custom_mask_offset[r], 0,
                      batch.custom_mask_bytes - num_bytes,
                      "custom_mask_bytes less those of the row, or -1");
}

absl::Status CheckBlocks(const AttentionParams& layer, const PagedBatch& batch, const KvLayer& kv,
                         const BatchRow& row) {
  KeyRange range = {.begin = row.seq_len, .end = 0};
  for (int query = 0; query < row.query_len; ++query) {
    const KeyRange interval = KeyInterval(layer, row, query);
    if (interval.empty()) continue;
    range.begin = std::min(range.begin, interval.begin);
    range.end = std::max(range.end, interval.end);
  }
  if (range.begin >= range.end) return absl::OkStatus();
  const int32_t* table = batch.block_table + row.table_row * batch.block_table_stride;
  const int64_t last = (row.key_start + range.end - 1) / kv.block_size;
  for (int64_t column = (row.key_start + range.begin) / kv.block_size; column <= last; ++column) {
    if (table[column] >= 0 && table[column] < kv.num_blocks) continue;
    return CheckElement(absl::StrCat("block_table[", row.table_row, "]"), column, table[column], 0,
                        kv.num_blocks - 1, "a block of the cache");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckBatchArrays(const AttentionParams& layer, const PagedBatch& batch,
                              const KvLayer& kv) {
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("query_start_loc", batch.query_start_loc, batch.num_rows,
                                        batch.max_query_len, "max_query_len", batch.num_tokens,
                                        "num_tokens"));
  for (int r = 0; r < batch.num_rows; ++r) {
    REPRISE_RETURN_IF_ERROR(
        CheckElement("seq_lens", r, batch.seq_lens[r], 0, batch.max_seq_len, "max_seq_len"));
    const BatchRow row = RowOf(batch, r);
    if (row.seq_len == 0 || row.query_len == 0) continue;
    REPRISE_RETURN_IF_ERROR(
        CheckElement("table_row", r, row.table_row, 0, batch.num_tables - 1, "num_tables - 1"));
    const int64_t width = int64_t{batch.max_blocks} * kv.block_size;
    REPRISE_RETURN_IF_ERROR(CheckElement("key_start", r, row.key_start, 0, width - row.seq_len,
                                         "max_blocks * block_size - seq_len"));
    REPRISE_RETURN_IF_ERROR(
        CheckElement("tail_len", r, row.tail_len, 0, std::min(64, row.seq_len), "64 and seq_len"));
    REPRISE_RETURN_IF_ERROR(CheckMask(batch, r, row));
    REPRISE_RETURN_IF_ERROR(CheckBlocks(layer, batch, kv, row));
  }
  return absl::OkStatus();
}

absl::Status CheckBatchArrays(const RaggedBatch& batch) {
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("query_start_loc", batch.query_start_loc, batch.num_rows,
                                        batch.max_query_len, "max_query_len", batch.num_tokens,
                                        "num_tokens"));
  REPRISE_RETURN_IF_ERROR(CheckStartLoc("key_start_loc", batch.key_start_loc, batch.num_rows,
                                        batch.max_seq_len, "max_seq_len", batch.num_keys,
                                        "num_keys"));
  for (int r = 0; r < batch.num_rows; ++r) {
    const BatchRow row = RowOf(batch, r);
    if (row.seq_len == 0 || row.query_len == 0) continue;
    REPRISE_RETURN_IF_ERROR(CheckMask(batch, r, row));
  }
  return absl::OkStatus();
}

}  // namespace reprise
