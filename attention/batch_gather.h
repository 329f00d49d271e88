// The plain builder over arrays: what attention/batch_builder.h makes of a scheduler's sequences on
// the host, this makes of arrays that may be on the device, inside a captured graph.
//
//   // Rows of the slots 4 and 0 with 1 and 5 new tokens; seq_lens include them:
//   BatchGather gather{.table_row = table_row, .query_lens = query_lens, .seq_lens = seq_lens,
//                      .table = table, .num_blocks = 1024, .num_rows = 16, .num_tokens = 32,
//                      .max_query_len = 8, .max_seq_len = 4096, .out = buffers};
//   PagedBatch batch = BatchOver(gather);        // its pointers and capacities, once a shape
//   LaunchBatchGather(gather, stream);           // each step (attention/batch_gather_kernel.h)
//
// For runners that keep lengths and tables on the device; a runner whose sequences live in slots
// has refill (runner/refill.h), which does this and more.
//
//   array            live rows and tokens                        padded and bad
//   query_start_loc  prefix sums of query_len                    the live total, continued
//   seq_lens         keys in the cache after the step            0
//   table_row        as given                                    0
//   key_start        as given                                    0
//   positions        place in the sequence                       0
//   slot_mapping     block * block_size + offset; -1 in the      -1
//                    null block, and for tokens older than
//                    write_window
//
// A row with query_len 0 is an empty row. A row is bad, and then an empty one, if
//   - its query_len is negative or larger than num_tokens, or its length too small for its queries;
//   - its table_row is outside [0, num_tables), its key_start negative, or a key beyond the table;
//   - a block that a new token goes to is outside [0, num_blocks);
//   - its tokens, after those of the good rows before it, pass num_tokens; then no later row is
//     served either.
// num_bad_rows counts them.
//
// Thread safety: pure functions. Cost: linear in rows, tokens and new blocks; no allocation.

#ifndef ATTENTION_BATCH_GATHER_H_
#define ATTENTION_BATCH_GATHER_H_

#include <cstdint>

#include "attention/batch_builder.h"
#include "attention/paged_batch.h"
#include "attention/seq_len_form.h"

namespace reprise {

// Where the batch is gathered: the caller's memory, on the device of the inputs.
struct BatchGatherBuffers {
  int32_t* query_start_loc = nullptr;  // [num_rows + 1]
  int32_t* seq_lens = nullptr;         // [num_rows]
  int32_t* table_row = nullptr;        // [num_rows]
  int32_t* key_start = nullptr;        // [num_rows]; with key_start of the inputs
  int32_t* positions = nullptr;        // [num_tokens]
  int64_t* slot_mapping = nullptr;     // [num_tokens]
  int32_t* num_bad_rows = nullptr;     // [1]
};

struct BatchGather {
  // [num_rows] of the rows in use, which are the first ones.
  const int32_t* table_row = nullptr;
  const int32_t* query_lens = nullptr;
  const int32_t* seq_lens = nullptr;
  // Where the sequence's first token stands in its table row, as in BatchSequence; absent: 0.
  const int32_t* key_start = nullptr;
  const int32_t* num_live_rows = nullptr;  // [1], cut to 0 .. num_rows; absent: num_rows
  SeqLenForm seq_len_form = SeqLenForm::kWithStep;
  BlockTableView table = {};  // entries on the device of the inputs
  int num_blocks = 0;         // of the cache, the null block included
  // Of its new tokens each sequence writes the last so many only, at least 1; 0: all. For prefills
  // whose attention runs over contiguous keys (RaggedBatch) and whose layers have a window of so
  // many tokens: where attention reads the cache, the first queries would miss their keys.
  int write_window = 0;

  // The shape of the result, constant under capture.
  int num_rows = 0;
  int num_tokens = 0;
  int max_query_len = 0;
  int max_seq_len = 0;

  BatchGatherBuffers out = {};
};

// The batch that stands in the buffers: causal, with query_positions absent.
PagedBatch BatchOver(const BatchGather& gather);

// REQUIRES: host pointers, all buffers given, counts of 0 or more, block_size of 1 or more.
void GatherBatchOnHost(const BatchGather& gather);

}  // namespace reprise

#endif  // ATTENTION_BATCH_GATHER_H_
