// Which keys the queries of speculative batches see, from the definition alone: no block table, no
// mask, nothing that a builder has made.
//
//   const std::vector<SeenKey> seen = TreeByDefinition(args, layer.window_left);
//   EXPECT_EQ(DifferenceOf(VisibleSet(layer, batch, block_size), PairsOf(seen, args.table)), "");
//
// Read are the inputs of a builder only. Pure functions of host data.

#ifndef ATTENTION_TESTING_DRAFT_DEFINITIONS_H_
#define ATTENTION_TESTING_DRAFT_DEFINITIONS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "attention/chain_batch_args.h"
#include "attention/draft_steps_args.h"
#include "attention/paged_table.h"
#include "attention/testing/visible_set.h"
#include "attention/tree_batch_args.h"

namespace reprise {

// Token `token` of the batch, standing at query_position, sees the key that is number `place` of
// the sequence in table row `row`, and stands at key_position.
struct SeenKey {
  int token = 0;
  int64_t query_position = 0;
  int32_t row = 0;
  int64_t place = 0;
  int64_t key_position = 0;
};

// Of all ranks together.
std::vector<SeenKey> ChainByDefinition(const ChainBatchArgs& args, std::optional<int> window_left);
std::vector<SeenKey> TreeByDefinition(const TreeBatchArgs& args, std::optional<int> window_left);
std::vector<SeenKey> DraftChainByDefinition(const DraftChainArgs& args, int step,
                                            std::optional<int> window_left);
// trees[r]: the parents of all nodes of row r's tree, those of this level last.
std::vector<SeenKey> DraftLevelByDefinition(const DraftLevelArgs& args,
                                            const std::vector<std::vector<int32_t>>& trees,
                                            std::optional<int> window_left);

// By slot, in the order of VisibleSet().
VisiblePairs PairsOf(const std::vector<SeenKey>& seen, const PagedTable& table);

}  // namespace reprise

#endif  // ATTENTION_TESTING_DRAFT_DEFINITIONS_H_
