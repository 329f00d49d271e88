// Chunked-local attention as a paged batch: each row is cut at chunk boundaries into virtual rows.
// A virtual row has the keys of one chunk only.
//
// A query at position p sees the keys at positions floor(p / chunk_size) * chunk_size .. p (Llama
// 4; same form as the local attention virtual batches of vLLM and SGLang). A virtual row has the
// queries of a row that are in one chunk. Its table_row refers to the same block table, and its
// key_start is the chunk's start. No keys are copied, no table is gathered, and the chunk size need
// not be a multiple of the block size.
//
//   // Rows of 4, 10 and 5 queries over 6, 17 and 9 keys, chunk_size 4:
//   //   query_start_loc 0 2 4 5 9 13 14 18 19      seq_lens  4 2 4 4 4 1 4 1
//   //   table_row       0 0 1 1 1  1  2  2         key_start 0 4 4 8 12 16 4 8
//   LocalVirtualBatchArgs args{.batch = batch, .chunk_size = 4, .buffers = buffers};
//   absl::StatusOr<PagedBatch> local = BuildLocalVirtualBatch(args);
//   // on a GPU: LocalVirtualBatch(args) once per shape, LaunchLocalVirtualBatch(args, stream) each
//   // step
//
// The result always has MaxLocalRows(batch.num_rows, batch.num_tokens, chunk_size) rows. Its shape
// therefore does not depend on the live sizes, and a captured graph may use it for decode,
// verification of draft chains, chunked prefill and drafting.
//
//   array            virtual rows in use                     unused virtual rows
//   query_start_loc  index of the virtual row's first token  the batch's last query_start_loc
//   seq_lens         last query's position + 1 - key_start   0
//   table_row        the original row's table_row            0
//   key_start        start of the chunk, or of the original  0
//                    row if that is later
//
// A row without queries has no virtual rows. A row without keys has virtual rows without keys. The
// order of tokens does not change, so q, out, slot_mapping and query_positions stay valid.
//
// A query's position, and therefore its chunk, is key_start + seq_len - query_len + i.
// query_positions may be given, but must have the same values.
//
// The queries of an invalid row see no key, and row_faults holds the reason:
//   kLength    a negative length or key_start, more queries than keys, positions beyond int32, or
//              a query_start_loc that decreases or exceeds num_tokens (then without virtual rows)
//   kNoRoom    more virtual rows than the bound; possible only if query_start_loc decreases
//
// For kernels that need one table row per virtual row, see attention/metadata/batch_tables.h.
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

// Returns the batch over the buffers. Depends only on pointers and capacities: call it once per
// captured shape.
// REQUIRES: CheckLocalVirtualBatch(args) is OK.
PagedBatch LocalVirtualBatch(const LocalVirtualBatchArgs& args);

// Checks the arguments of both forms. Does not read the arrays.
// Errors: InvalidArgument for a chunk_size below 1, buffers that are absent or too small, or a
// batch that is not causal or has tail_len, a custom mask or several ranks: its rows cannot be cut.
absl::Status CheckLocalVirtualBatch(const LocalVirtualBatchArgs& args);

// Fills host buffers, like LaunchLocalVirtualBatch() on the device.
// REQUIRES: CheckLocalVirtualBatch(args) is OK.
void LocalVirtualBatchOnHost(const LocalVirtualBatchArgs& args);

// Fills host buffers and returns the batch over them, which is valid until the next build into the
// same buffers.
// Errors: those of CheckLocalVirtualBatch(); InvalidArgument that names the row, for the first row
// with a fault, for a query_start_loc that does not start at 0, or for query_positions that differ.
// On error the content of the buffers is undefined.
absl::StatusOr<PagedBatch> BuildLocalVirtualBatch(const LocalVirtualBatchArgs& args);

// Fills device buffers. May be captured.
// REQUIRES: query_start_loc starts at 0 and does not decrease. Otherwise the rows are wrong, but
// nothing is written outside the buffers.
// Errors: those of CheckLocalVirtualBatch(); Internal if the launch fails. Cost: one CTA. Does not
// synchronise.
absl::Status LaunchLocalVirtualBatch(const LocalVirtualBatchArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_METADATA_LOCAL_VIRTUAL_BATCH_H_
