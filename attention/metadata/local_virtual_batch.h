// Chunked-local attention as a paged batch: each row is cut at chunk boundaries into virtual rows,
// each with the keys of its own chunk only.
//
// A query at position p sees the keys of positions floor(p / chunk_size) * chunk_size .. p (Llama
// 4; same form as the local attention virtual batches of vLLM and SGLang). A virtual row has the
// queries of a row that are in one chunk: table_row points into the same block table, and key_start
// is the chunk's start. Nothing is copied, no table is gathered, and any chunk size works with any
// block size.
//
//   // Rows of 4, 10 and 5 queries over 6, 17 and 9 keys, chunk_size 4:
//   //   query_start_loc 0 2 4 5 9 13 14 18 19      seq_lens  4 2 4 4 4 1 4 1
//   //   table_row       0 0 1 1 1  1  2  2         key_start 0 4 4 8 12 16 4 8
//   absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(batch, 4, buffers);
//
// The result always has MaxLocalRows(batch.num_rows, batch.num_tokens, chunk_size) rows, so it has
// one shape for all live sizes and may be used in a captured graph, for decode, verification of
// drafts (a chain), chunked prefill and drafting. On a GPU call LaunchLocalVirtualBatch()
// (attention/metadata/local_virtual_batch_kernel.h) each step, over buffers at fixed addresses.
//
//   array            virtual rows in use                        those beyond
//   query_start_loc  the row's, cut at chunks                   the live total, continued
//   seq_lens         last query's position + 1 - key_start      0
//   table_row        the row's                                  0
//   key_start        the chunk's start, or the row's if later   0
//
// A row without queries has no virtual rows; a row without keys has virtual rows without keys.
// Tokens, and so q, out, slot_mapping and query_positions, stay where they are.
//
// A query's chunk follows from its place among its row's keys, key_start + seq_len - query_len + i.
// query_positions may be given, but must have the same values.
//
// For kernels that need one table per virtual row: attention/metadata/local_block_table.h.
//
// Thread safety: pure functions. Cost: linear in rows and virtual rows; no allocation.

#ifndef ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_H_
#define ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "attention/metadata/local_virtual_rows.h"
#include "attention/paged_batch.h"

namespace reprise {

// Buffers for virtual rows: the caller's memory, on the device of the batch, for max_rows rows.
struct LocalBatchBuffers {
  int32_t* query_start_loc = nullptr;  // [max_rows + 1]
  int32_t* seq_lens = nullptr;         // [max_rows]
  int32_t* table_row = nullptr;        // [max_rows]
  int32_t* key_start = nullptr;        // [max_rows]
  int max_rows = 0;
};

// The batch over the buffers: its pointers and capacities. Reads no array, so it accepts host and
// device batches; call it once per captured shape.
// Errors: InvalidArgument for a chunk_size below 1, buffers that are absent or too small, or a
// batch whose rows cannot be cut: a batch that is not causal, or has tail_len or keys of several
// ranks.
absl::StatusOr<PagedBatch> LocalVirtualBatchOver(const PagedBatch& batch, int chunk_size,
                                                 const LocalBatchBuffers& buffers);

// Fills host buffers and returns the batch over them: views that are valid until the next build
// into the same buffers. Errors: those above; InvalidArgument, naming the row, for a
// query_start_loc that decreases or exceeds num_tokens, a row with more queries than keys, a
// negative length, positions beyond int32, or query_positions that differ. On error the buffers'
// content is undefined.
absl::StatusOr<PagedBatch> BuildLocalVirtualBatch(const PagedBatch& batch, int chunk_size,
                                                  const LocalBatchBuffers& buffers);

}  // namespace reprise

#endif  // ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_H_
