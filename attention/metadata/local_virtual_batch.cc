#include "reprise/attention/metadata/local_virtual_batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

FaultyRows Cut(const LocalVirtualBatchArgs& args) {
  FaultyRows faulty;
  const int num_local_rows = MaxLocalRows(args);
  int v = 0;
  for (int r = 0; r < args.batch.num_rows; ++r) {
    CutRow row = CutRowOf(args, r);
    KeepToRoom(row, num_local_rows - v);
    for (int i = 0; i < row.cut.num_rows && v < num_local_rows; ++i, ++v) {
      WriteLocalRow(args.buffers, v, row, LocalRowOf(row.cut, i, args.chunk_size));
    }
    if (args.row_faults) args.row_faults[r] = static_cast<int32_t>(row.fault);
    faulty.Add(r, row.fault);
  }
  for (; v < num_local_rows; ++v) WriteUnusedLocalRow(args, v);
  args.buffers.query_start_loc[num_local_rows] = args.batch.query_start_loc[args.batch.num_rows];
  if (args.num_faults) *args.num_faults = faulty.count;
  return faulty;
}

// Checks that query_positions are the positions of the queries among the row's keys. Rows are cut
// by the positions among the keys.
absl::Status CheckPositions(const PagedBatch& batch, int r) {
  const int first_token = batch.query_start_loc[r];
  const int query_len = batch.query_start_loc[r + 1] - first_token;
  const int key_start = batch.key_start ? batch.key_start[r] : 0;
  if (batch.seq_lens[r] == 0) return absl::OkStatus();
  const int first_position = key_start + batch.seq_lens[r] - query_len;
  for (int i = 0; i < query_len; ++i) {
    const int position = batch.query_positions[first_token + i];
    if (position == first_position + i) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("query_positions[", first_token + i, "]: expected ", first_position + i,
                     " (its position among the keys), got ", position));
  }
  return absl::OkStatus();
}

}  // namespace

PagedBatch LocalVirtualBatch(const LocalVirtualBatchArgs& args) {
  PagedBatch local = args.batch;
  local.query_start_loc = args.buffers.query_start_loc;
  local.seq_lens = args.buffers.seq_lens;
  local.table_row = args.buffers.table_row;
  local.key_start = args.buffers.key_start;
  local.common_prefix_len = nullptr;
  local.num_rows = MaxLocalRows(args);
  local.max_query_len = std::min(args.batch.max_query_len, args.chunk_size);
  local.max_seq_len = std::min(args.batch.max_seq_len, args.chunk_size);
  return local;
}

absl::Status CheckLocalVirtualBatch(const LocalVirtualBatchArgs& args) {
  const PagedBatch& batch = args.batch;
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("chunk_size", args.chunk_size, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("batch.num_rows", batch.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("batch.num_tokens", batch.num_tokens, 0));
  if (!batch.causal) {
    return absl::InvalidArgumentError("batch.causal: expected true, got false");
  }
  if (batch.tail_len) {
    return absl::InvalidArgumentError("batch.tail_len must not be given");
  }
  // The mask is laid out for the original rows, not for virtual rows.
  if (batch.custom_mask) {
    return absl::InvalidArgumentError("batch.custom_mask must not be given");
  }
  REPRISE_RETURN_IF_ERROR(CheckEqual("batch.key_positions.world", batch.key_positions.world, 1));
  const LocalBatchBuffers& buffers = args.buffers;
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("buffers.max_rows", buffers.max_rows, MaxLocalRows(args)));
  REPRISE_RETURN_IF_ERROR(CheckGiven({{"batch.query_start_loc", batch.query_start_loc},
                                      {"buffers.query_start_loc", buffers.query_start_loc}}));
  if (batch.num_rows > 0) {
    REPRISE_RETURN_IF_ERROR(CheckGiven("batch.seq_lens", batch.seq_lens));
  }
  if (MaxLocalRows(args) == 0) return absl::OkStatus();
  return CheckGiven({{"buffers.seq_lens", buffers.seq_lens},
                     {"buffers.table_row", buffers.table_row},
                     {"buffers.key_start", buffers.key_start}});
}

void LocalVirtualBatchOnHost(const LocalVirtualBatchArgs& args) { Cut(args); }

absl::StatusOr<PagedBatch> BuildLocalVirtualBatch(const LocalVirtualBatchArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckLocalVirtualBatch(args));
  const PagedBatch& batch = args.batch;
  const int32_t* loc = batch.query_start_loc;
  REPRISE_RETURN_IF_ERROR(CheckEqual("query_start_loc[0]", loc[0], 0));
  REPRISE_RETURN_IF_ERROR(Cut(args).ToStatus([&](int r) {
    return absl::StrCat("tokens ", loc[r], " to ", loc[r + 1], " of ", batch.num_tokens,
                        ", seq_len ", batch.seq_lens[r], ", key_start ",
                        batch.key_start ? batch.key_start[r] : 0);
  }));
  for (int r = 0; r < batch.num_rows && batch.query_positions; ++r) {
    REPRISE_RETURN_IF_ERROR(CheckPositions(batch, r));
  }
  return LocalVirtualBatch(args);
}

}  // namespace reprise
