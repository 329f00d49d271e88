// Proves the invariants of a work map against its batch: for tests.
//
//   ASSERT_TRUE(CheckWorkMap(map, batch, window).ok());
//
// Invariants 1 to 5 of attention/work_map.h, by looking at every query and key with the rules of
// attention/visibility.h. The map and the arrays of the batch are on the host.
//
// Errors: Internal, naming the invariant and the item. Cost: O(queries * keys), less where the
// first and the last visible key are found soon.

#ifndef ATTENTION_WORK_MAP_CHECK_H_
#define ATTENTION_WORK_MAP_CHECK_H_

#include "absl/status/status.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "attention/work_map.h"
#include "attention/work_map_rows.h"

namespace reprise {

absl::Status CheckWorkMap(const WorkMap& map, const PagedBatch& batch, const LayerWindow& window);
absl::Status CheckWorkMap(const WorkMap& map, const RaggedBatch& batch, const LayerWindow& window);

}  // namespace reprise

#endif  // ATTENTION_WORK_MAP_CHECK_H_
