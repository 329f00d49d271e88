// A batch drawn as text: for each query the keys that it sees, before and after any builder. For
// documentation and debugging.
//
//   std::cout << DrawBatch(batch, layer, {.block_size = 4});
//
//   row 0: 2 queries over 6 keys of table row 0, blocks 7 2
//     token  pos | 0   4
//         0    4 | #### #
//         1    5 | #### ##
//
// Columns are the keys of the row, from its key_start on, a gap at each block's end; their heading
// says at which position each block begins. A visible key is drawn as #, an invisible one as a
// point. In a row with a tail, where positions depend on the query, columns are still the keys in
// the order of the table, and a seen key of the tail is drawn as the last digit of its position.
// Rows without queries are left out; a row whose queries see no key says so.
//
// Simple rather than fast. REQUIRES: host pointers, and what the batch's contract says. Table
// entries that no query reads are drawn as a dash. Pure function.

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
  int q_head = 0;         // matters only to sparse patterns
  int max_columns = 100;  // keys drawn per row: the last ones; "<" replaces the keys before them
};

std::string DrawBatch(const PagedBatch& batch, const AttentionParams& layer,
                      const PictureOptions& options);

// Blocks are not drawn; columns are the row's own keys.
std::string DrawBatch(const RaggedBatch& batch, const AttentionParams& layer,
                      const PictureOptions& options);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_REFERENCE_BATCH_PICTURE_H_
