#include "attention/metadata/local_virtual_batch.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckAbsent(absl::string_view name, const void* array) {
  if (!array) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": expected none in a batch that is cut at chunks, got one"));
}

absl::Status CheckBatch(const PagedBatch& batch, int chunk_size) {
  if (chunk_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("chunk_size: expected at least 1, got ", chunk_size));
  }
  if (batch.num_rows < 0 || batch.num_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_rows and num_tokens: expected at least 0, got ", batch.num_rows, " and ",
                     batch.num_tokens));
  }
  if (!batch.causal) {
    return absl::InvalidArgumentError(
        "causal: expected true in a batch that is cut at chunks, got false");
  }
  REPRISE_RETURN_IF_ERROR(CheckAbsent("tail_len", batch.tail_len));
  if (batch.key_positions.world == 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("key_positions.world: expected 1 in a batch that is cut at chunks, got ",
                   batch.key_positions.world));
}

absl::Status CheckBuffers(const LocalBatchBuffers& buffers, int num_rows) {
  if (buffers.max_rows < num_rows) {
    return absl::InvalidArgumentError(absl::StrCat("buffers.max_rows: expected at least ", num_rows,
                                                   " (MaxLocalRows), got ", buffers.max_rows));
  }
  const bool has_rows = buffers.seq_lens && buffers.table_row && buffers.key_start;
  if (buffers.query_start_loc && (has_rows || num_rows == 0)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "buffers: expected query_start_loc, seq_lens, table_row and key_start, got an absent one");
}

absl::Status CheckRow(int r, const CutRow& row) {
  if (row.seq_len < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("seq_lens[", r, "]: expected at least 0, got ", row.seq_len));
  }
  if (row.seq_len == 0 || row.query_len == 0 || HasQueriesAmongKeys(row)) return absl::OkStatus();
  if (row.query_len > row.seq_len) {
    return absl::InvalidArgumentError(absl::StrCat("seq_lens[", r, "]: expected at least ",
                                                   row.query_len, " (its queries), got ",
                                                   row.seq_len));
  }
  return absl::InvalidArgumentError(absl::StrCat("key_start[", r, "]: expected 0 to ",
                                                 INT32_MAX - row.seq_len, ", got ", row.key_start));
}

// Rows are cut by the queries' places among their keys; other positions would be cut wrongly.
absl::Status CheckPositions(const PagedBatch& batch, int first_token, const CutRow& row) {
  if (!batch.query_positions || row.seq_len == 0) return absl::OkStatus();
  const int first_position = row.key_start + row.seq_len - row.query_len;
  for (int i = 0; i < row.query_len; ++i) {
    const int position = batch.query_positions[first_token + i];
    if (position == first_position + i) continue;
    return absl::InvalidArgumentError(absl::StrCat("query_positions[", first_token + i,
                                                   "]: expected ", first_position + i,
                                                   " (its place among the keys), got ", position));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PagedBatch> LocalVirtualBatchOver(const PagedBatch& batch, int chunk_size,
                                                 const LocalBatchBuffers& buffers) {
  REPRISE_RETURN_IF_ERROR(CheckBatch(batch, chunk_size));
  const int num_rows = MaxLocalRows(batch.num_rows, batch.num_tokens, chunk_size);
  REPRISE_RETURN_IF_ERROR(CheckBuffers(buffers, num_rows));
  PagedBatch local = batch;
  local.query_start_loc = buffers.query_start_loc;
  local.seq_lens = buffers.seq_lens;
  local.table_row = buffers.table_row;
  local.key_start = buffers.key_start;
  local.common_prefix_len = nullptr;
  local.num_rows = num_rows;
  local.max_query_len = std::min(batch.max_query_len, chunk_size);
  local.max_seq_len = std::min(batch.max_seq_len, chunk_size);
  return local;
}

absl::StatusOr<PagedBatch> BuildLocalVirtualBatch(const PagedBatch& batch, int chunk_size,
                                                  const LocalBatchBuffers& buffers) {
  REPRISE_ASSIGN_OR_RETURN(const PagedBatch local,
                           LocalVirtualBatchOver(batch, chunk_size, buffers));
  const int32_t* loc = batch.query_start_loc;
  if (loc[0] != 0) {
    return absl::InvalidArgumentError(absl::StrCat("query_start_loc[0]: expected 0, got ", loc[0]));
  }
  int next = 0;
  for (int r = 0; r < batch.num_rows; ++r) {
    if (loc[r + 1] < loc[r] || loc[r + 1] > batch.num_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("query_start_loc[", r + 1, "]: expected ", loc[r], " (the one before) to ",
                       batch.num_tokens, " (num_tokens), got ", loc[r + 1]));
    }
    const CutRow row = {.query_len = loc[r + 1] - loc[r],
                        .seq_len = batch.seq_lens[r],
                        .key_start = batch.key_start ? batch.key_start[r] : 0};
    REPRISE_RETURN_IF_ERROR(CheckRow(r, row));
    REPRISE_RETURN_IF_ERROR(CheckPositions(batch, loc[r], row));
    const LocalCut cut = CutAtChunks(row, chunk_size);
    for (int i = 0; i < cut.num_rows; ++i, ++next) {
      const LocalRow virtual_row = LocalRowOf(cut, i, chunk_size);
      buffers.query_start_loc[next] = loc[r] + virtual_row.first_token;
      buffers.seq_lens[next] = virtual_row.seq_len;
      buffers.key_start[next] = virtual_row.key_start;
      buffers.table_row[next] = !cut.has_keys ? 0 : batch.table_row ? batch.table_row[r] : r;
    }
  }
  for (int v = next; v < local.num_rows; ++v) {
    buffers.query_start_loc[v] = loc[batch.num_rows];
    buffers.seq_lens[v] = 0;
    buffers.key_start[v] = 0;
    buffers.table_row[v] = 0;
  }
  buffers.query_start_loc[local.num_rows] = loc[batch.num_rows];
  return local;
}

}  // namespace reprise
