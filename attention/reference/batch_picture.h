// Draws a batch as text: for each query, the keys that the query sees. Works for the batches of all
// builders. For documentation and debugging.
//
//   std::cout << DrawBatch(batch, layer, {.block_size = 4});
//
//   row 0: 2 queries over 6 keys of table row 0, blocks 7 2
//     token  pos | 0   4
//         0    4 | #### #
//         1    5 | #### ##
//
// A column is a key of the row, starting at key_start, with a gap after each block. The heading has
// the position of the first key of each block, or of every fifth key if block_size is 1, where
// there is room. # is a visible key, and a dot is an invisible key.
// In a row with a tail, positions depend on the query: columns are still in the order of the table,
// and a visible key of the tail is drawn as the last digit of its position. A table entry that no
// query reads is drawn as a dash. Rows without queries are omitted. For rows without keys, a line
// states that the queries see no key.
//
// Not optimised for speed. Pure function. REQUIRES: pointers are on the host, and the batch is
// valid (attention/paged_batch.h).

#ifndef REPRISE_ATTENTION_REFERENCE_BATCH_PICTURE_H_
#define REPRISE_ATTENTION_REFERENCE_BATCH_PICTURE_H_

#include <optional>
#include <string>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"

namespace reprise {

struct PictureOptions {
  int block_size = 1;
  int q_head = 0;         // used only for sparse patterns
  int max_columns = 100;  // only the last keys of a row are drawn; "<" replaces the other keys
};

std::string DrawBatch(const PagedBatch& batch, const AttentionParams& layer,
                      const PictureOptions& options);

// Draws a batch over contiguous keys. There are no blocks; columns are the row's keys.
std::string DrawBatch(const RaggedBatch& batch, const AttentionParams& layer,
                      const PictureOptions& options);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_REFERENCE_BATCH_PICTURE_H_
