// Block tables of a batch's own rows, for kernels that do not read through table_row: one row of
// the result for each row of the batch, padded or packed.
//
//   REPRISE_RETURN_IF_ERROR(GatherPaddedTable(built.batch, table, padded));
//   absl::StatusOr<int> num_indices = GatherPackedTable(built.batch, table, packed);
//
// The forms are those of cache/block_table_formats.h. Only blocks of a row's seq_len tokens are
// taken, so look-ahead blocks stay out; padded rows are empty rows. Which of them is a choice
// (attention/batch_table_rows.h): all, those cached before the step (none in a pure prefill), or
// those that a window reaches.
//
// On a GPU: attention/batch_tables_kernel.h.
//
// REQUIRES: a batch without key_start, whose rows lie within the table, as BuildPagedBatch() makes
// it. Thread safety: pure functions. Cost: linear in rows and blocks; no allocation.

#ifndef ATTENTION_BATCH_TABLES_H_
#define ATTENTION_BATCH_TABLES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/batch_builder.h"
#include "attention/batch_table_rows.h"
#include "attention/paged_batch.h"
#include "cache/block_table_formats.h"

namespace reprise {

// Writes batch.num_rows rows, with null blocks past each row's last, and the keys in them as
// seq_lens. Errors, before anything is written: InvalidArgument for a row that is wider than the
// output, an output too small, or a window_left below 0.
absl::Status GatherPaddedTable(const PagedBatch& batch, const BlockTableView& table,
                               const MutablePaddedBlockTable& padded,
                               const TableSelection& selection = {});

// Writes batch.num_rows rows; returns how many block_indices they take. Shared blocks are listed
// once a row.
// Errors, before anything is written: InvalidArgument for an output too small.
absl::StatusOr<int> GatherPackedTable(const PagedBatch& batch, const BlockTableView& table,
                                      const MutablePackedBlockTable& packed,
                                      const TableSelection& selection = {});

// Cumulative key lengths, as kernels over packed keys want them: key_start_loc [batch.num_rows + 1]
// is the prefix sums of seq_lens. Errors, before anything is written: InvalidArgument for an output
// too small, or a total beyond int32.
absl::Status FillKeyStartLoc(const PagedBatch& batch, absl::Span<int32_t> key_start_loc);

}  // namespace reprise

#endif  // ATTENTION_BATCH_TABLES_H_
