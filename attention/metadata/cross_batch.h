// Cross attention as a paged batch: the decoder's rows of queries over the encoder's keys.
//
// The encoder's keys are cached once, either in a separate table (the cross group's) or before the
// decoder's keys in one shared table. Each sequence has one key per token of its encoder input. The
// batch is not causal, has the decoder's query_start_loc and table_row, and encoder lengths as
// seq_lens. So one batch may mix decodes, prefill chunks and drafts of sequences with different
// encoder lengths, or without an encoder (length 0: out is 0), in a captured graph too.
//
//   // Slots 2 and 0, whose encoder inputs had 7 and 3 tokens; encoder_lens {3, -, 7} by slot:
//   CrossBatch cross{.rows = decoder_batch, .encoder_lens = lens, .table = encoder_table,
//                    .max_encoder_len = 1500, .seq_lens = buffer};
//   absl::StatusOr<PagedBatch> batch = BuildCrossBatch(cross);     // seq_lens {7, 3}
//   // on a GPU: CrossBatchOver(cross) once, LaunchCrossBatch(cross, stream) each step
//
// The encoder's keys have their own slots: build a batch with one row per input, with
// BuildPagedBatch() over sequences {table_row, 0, encoder_len} of the encoder's table. Write with
// its slot_mapping once, when the input arrives.
//
// One table may hold both (SGLang's token table): the encoder's keys first, then the decoder's. The
// decoder's sequences then have key_start = encoder_len (attention/metadata/batch_sequence.h); the
// cross batch reads the same table from its start.
//
// A window of a cross layer counts from query_positions. Give the batch query_positions that are
// comparable to positions 0 .. encoder_len - 1, or set no window.
//
// Thread safety: pure functions. Cost: linear in rows; no allocation.

#ifndef ATTENTION_METADATA_CROSS_BATCH_H_
#define ATTENTION_METADATA_CROSS_BATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "attention/metadata/batch_builder.h"
#include "attention/paged_batch.h"

namespace reprise {

struct CrossBatch {
  // The decoder's batch. query_start_loc, seq_lens (rows without keys stay padded rows), table_row
  // and capacities are used. It may consist of virtual rows or have masks; masks are ignored.
  PagedBatch rows = {};
  const int32_t* encoder_lens = nullptr;  // [table.num_tables] encoder tokens of each table row
  BlockTableView table = {};              // of the encoder's keys; rows as in the decoder's
  int max_encoder_len = 0;                // upper bound, constant under capture
  int32_t* seq_lens = nullptr;            // [rows.num_rows] the caller's memory
};

// The batch over the buffer; reads no array. Errors: InvalidArgument for an absent array, a
// negative max_encoder_len, one beyond the table's width, or a block_size below 1.
absl::StatusOr<PagedBatch> CrossBatchOver(const CrossBatch& cross);

// Fills the buffer on the host. Errors: those above; InvalidArgument, naming the row, for a
// table_row outside the table or an encoder length outside 0 .. max_encoder_len.
absl::StatusOr<PagedBatch> BuildCrossBatch(const CrossBatch& cross);

// Number of keys that row r sees; -1 if its table row or length is out of range. Used by both
// forms.
constexpr int32_t CrossSeqLen(const CrossBatch& cross, int r) {
  if (cross.rows.seq_lens[r] <= 0) return 0;
  const int32_t table_row = cross.rows.table_row ? cross.rows.table_row[r] : r;
  if (table_row < 0 || table_row >= cross.table.num_tables) return -1;
  const int32_t length = cross.encoder_lens[table_row];
  return length >= 0 && length <= cross.max_encoder_len ? length : -1;
}

}  // namespace reprise

#endif  // ATTENTION_METADATA_CROSS_BATCH_H_
