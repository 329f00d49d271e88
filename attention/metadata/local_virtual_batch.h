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
//   LocalVirtualBatchArgs args{.batch = batch, .chunk_size = 4, .buffers = buffers};
//   absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(args);
//   // on a GPU: LocalVirtualBatch(args) once per shape, LaunchLocalVirtualBatch(args, stream) each
//   // step
//
// The result always has MaxLocalRows(batch.num_rows, batch.num_tokens, chunk_size) rows, so it has
// one shape for all live sizes and may be used in a captured graph, for decode, verification of
// drafts (a chain), chunked prefill and drafting.
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
// The queries of a row that cannot be served see no key, with the reason in row_faults:
//   kLength    a negative length, more queries than keys, positions beyond int32, tokens that
//              decrease or exceed num_tokens (the row then has no virtual rows)
//   kNoRoom    more virtual rows than the bound, which only a query_start_loc that decreases has
//
// For kernels that need one table per virtual row: attention/metadata/batch_tables.h.
//
// Thread safety: pure functions. Cost: linear in rows and virtual rows; no allocation.

#ifndef REPRISE_ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_H_
#define REPRISE_ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/metadata/local_virtual_batch_args.h"
#include "reprise/attention/paged_batch.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// The batch over the buffers: its pointers and capacities; call it once per captured shape.
// REQUIRES: CheckLocalVirtualBatch(args) is OK.
PagedBatch LocalVirtualBatch(const LocalVirtualBatchArgs& args);

// Checks the arguments for both forms; reads no array. Errors: InvalidArgument for a chunk_size
// below 1, buffers that are absent or too small, or a batch whose rows cannot be cut: a batch that
// is not causal, or has tail_len, a custom mask or keys of several ranks.
absl::Status CheckLocalVirtualBatch(const LocalVirtualBatchArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckLocalVirtualBatch(args) is OK.
void LocalVirtualBatchOnHost(const LocalVirtualBatchArgs& args);

// Fills host buffers and returns the batch over them: views that are valid until the next build
// into the same buffers. Errors: those of CheckLocalVirtualBatch(); InvalidArgument, naming the
// row, for the first row with a fault, a query_start_loc that does not start at 0, or
// query_positions that differ. On error the buffers' content is undefined.
absl::StatusOr<PagedBatch> BuildLocalVirtualBatch(const LocalVirtualBatchArgs& args);

// Fills device buffers. One CTA, no synchronisation; may be captured. REQUIRES: query_start_loc is
// non-decreasing, from 0; otherwise rows are wrong, but nothing outside the buffers is written.
// Errors: those of CheckLocalVirtualBatch(); Internal if the launch fails.
absl::Status LaunchLocalVirtualBatch(const LocalVirtualBatchArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_H_
