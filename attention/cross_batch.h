// Cross attention as a paged batch: the decoder's rows of queries over the encoder's keys.
//
// The encoder's keys are cached once, in blocks of a table of their own (the cross group's) or in
// front of the decoder's in one shared table, and each sequence has as many as its input was long.
// The batch is not causal, has the decoder's query_start_loc and table_row, and encoder lengths as
// seq_lens; so decodes, prefill chunks and drafts of sequences with different encoder lengths, or
// without an encoder (length 0: out is 0), go together, in a captured graph too.
//
//   // Slots 2 and 0, whose encoder inputs had 7 and 3 tokens; encoder_lens {3, -, 7} by slot:
//   CrossBatch cross{.rows = decoder_batch, .encoder_lens = lens, .table = encoder_table,
//                    .max_encoder_len = 1500, .seq_lens = buffer};
//   absl::StatusOr<PagedBatch> batch = BuildCrossBatch(cross);     // seq_lens {7, 3}
//   // on a GPU: CrossBatchOver(cross) once, LaunchCrossBatch(cross, stream) each step
//
// The encoder's keys have slots of their own: its tokens are a batch like any other, one row an
// input, BuildPagedBatch() over sequences {table_row, 0, encoder_len} of the encoder's table. Write
// with that slot_mapping once, when the input arrives.
//
// One table for both (SGLang's token table): the encoder's keys first, the decoder's after them.
// The decoder's sequences then have key_start = encoder_len (attention/batch_sequence.h); the cross
// batch reads the same table from its start.
//
// A window of a cross layer counts from query_positions; give the batch some that mean something
// against positions 0 .. encoder_len - 1, or leave the window out.
//
// Thread safety: pure functions. Cost: linear in rows; no allocation.

#ifndef ATTENTION_CROSS_BATCH_H_
#define ATTENTION_CROSS_BATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "attention/batch_builder.h"
#include "attention/paged_batch.h"

namespace reprise {

struct CrossBatch {
  // The decoder's: query_start_loc, seq_lens (rows without keys stay padded rows), table_row and
  // capacities are used, and it may be virtual rows or have masks: these are left out.
  PagedBatch rows = {};
  const int32_t* encoder_lens = nullptr;  // [table.num_tables] encoder tokens of each table row
  BlockTableView table = {};              // of the encoder's keys; rows as in the decoder's
  int max_encoder_len = 0;                // upper bound, constant under capture
  int32_t* seq_lens = nullptr;            // [rows.num_rows] the caller's memory
};

// The batch that will stand in the buffer; reads no array. Errors: InvalidArgument for an absent
// array, a negative max_encoder_len, one beyond the table's width, or a block_size below 1.
absl::StatusOr<PagedBatch> CrossBatchOver(const CrossBatch& cross);

// Fills the buffer on the host. Errors: those above; InvalidArgument, naming the row, for a
// table_row outside the table or an encoder length outside 0 .. max_encoder_len.
absl::StatusOr<PagedBatch> BuildCrossBatch(const CrossBatch& cross);

// Keys that row r sees; -1 if its table row or length is out of range. The arithmetic of both
// forms.
constexpr int32_t CrossSeqLen(const CrossBatch& cross, int r) {
  if (cross.rows.seq_lens[r] <= 0) return 0;
  const int32_t table_row = cross.rows.table_row ? cross.rows.table_row[r] : r;
  if (table_row < 0 || table_row >= cross.table.num_tables) return -1;
  const int32_t length = cross.encoder_lens[table_row];
  return length >= 0 && length <= cross.max_encoder_len ? length : -1;
}

}  // namespace reprise

#endif  // ATTENTION_CROSS_BATCH_H_
