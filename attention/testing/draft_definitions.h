// Computes from the definition which keys the queries of speculative batches see, without block
// tables, masks or other results of a builder.
//
//   const std::vector<SeenKey> seen = TreeByDefinition(args, layer.window_left);
//   EXPECT_EQ(DifferenceOf(VisibleSet(layer, batch, block_size), PairsOf(seen, args.table)), "");
//
// Reads only the inputs of a builder. Thread safety: pure functions of host data.

#ifndef REPRISE_ATTENTION_TESTING_DRAFT_DEFINITIONS_H_
#define REPRISE_ATTENTION_TESTING_DRAFT_DEFINITIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/attention/metadata/batch_gather_args.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/speculation/draft_rows_args.h"
#include "reprise/attention/speculation/tree_batch_args.h"
#include "reprise/attention/testing/visible_set.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// Token `token` of the batch, at query_position, sees key number `place` of the sequence in
// table row `row`, at key_position.
struct SeenKey {
  int token = 0;
  int64_t query_position = 0;
  int32_t row = 0;
  int64_t place = 0;
  int64_t key_position = 0;
};

// Returns the keys of all ranks together.
std::vector<SeenKey> ChainByDefinition(const BatchGatherArgs& args, std::optional<int> window_left);
std::vector<SeenKey> TreeByDefinition(const TreeBatchArgs& args, std::optional<int> window_left);
// Returns the keys of one pass of a draft model. REQUIRES: the tables have no missing blocks; a
// tree has no ranks, and its parents are indexed by token.
std::vector<SeenKey> DraftPassByDefinition(const DraftRowsArgs& args,
                                           std::optional<int> window_left);

// Returns the length of the longest sequence within max_context_len whose part fits the table on
// every rank. Computed by counting.
int64_t LimitByDefinition(const BlockTableView& table, int64_t max_context_len,
                          const KeyPositions& ranks = {});

// Returns pairs by slot, in the order of VisibleSet().
VisiblePairs PairsOf(const std::vector<SeenKey>& seen, const BlockTableView& table);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TESTING_DRAFT_DEFINITIONS_H_
