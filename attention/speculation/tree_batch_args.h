// Arguments of a batch of token trees (attention/speculation/tree_batch.h).

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_BATCH_ARGS_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_BATCH_ARGS_H_

#include <cstdint>

#include "reprise/attention/metadata/batch_arrays.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

struct TreeBatchArgs {
  // [num_rows] table row of the row's sequence; negative: padded row.
  const int32_t* slots = nullptr;
  // [num_tables] number of the sequence's keys in the cache before this step, by table row.
  const int32_t* seq_len = nullptr;
  // [num_rows] number of nodes of the row's tree, 0 to max_nodes.
  const int32_t* num_nodes = nullptr;
  // [num_rows, parent_stride] parent of each node; stride 0: one tree for all rows.
  const int32_t* parents = nullptr;
  int64_t parent_stride = 0;
  // [num_tables] token of node 0, by table row. Absent: `tokens` includes node 0.
  const int32_t* first_token = nullptr;
  // [num_rows, token_stride] tokens of the nodes, without node 0 if first_token is given. Read only
  // if arrays.token_ids is present. Absent: their ids are 0.
  const int32_t* tokens = nullptr;
  int64_t token_stride = 0;

  BlockTableView table = {};
  int64_t max_context_len = 0;

  // Sizes of the arrays; under capture, the captured sizes.
  int num_rows = 0;
  int num_tokens = 0;
  int max_nodes = 0;  // 1 to 64
  BatchArrays arrays = {};
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_BATCH_ARGS_H_
