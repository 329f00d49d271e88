// The steps of a draft model: the metadata of each, made on the device without the host. S5, S13.
//
// A draft model runs num_steps times behind a verified sequence; the drafts of one step are the
// input of the next. What a step attends to does not depend on which tokens were drafted, but for
// the shape of a tree:
//
//   topk = 1   a chain: step s has one token a row, at seq_len + s, with seq_len + s + 1 keys. All
//              steps' sets are made by one launch beforehand (DraftChain).
//   topk > 1   a tree that grows by a level of `width` = topk nodes each step. Node i of level s
//              is number s * width + i; its parent is any node before the level, chosen from the
//              level's scores: one launch a step (DraftLevel), from the parents that the step
//              before it left on the device.
//
// A row of seq_len 10, width 2, parents {-1, -1}, then {1, 1}, then {2, 3}:
//
//   level  nodes  keys      positions  tail_len  tail_mask (binary)
//   0      0 1    10 11     10 10      2         1 10
//   1      2 3    12 13     11 11      4         110 1010
//   2      4 5    14 15     12 12      6         10110 101010
//
// Rows stand still: row r's tokens are [r * width, (r + 1) * width) in every step, live or not, so
// that sampled tokens of one step lie where the next one reads them. A row whose drafts would pass
// max_context_len, or the table's width, is inert in that step and those after it. Keys of drafts
// stand in the cache by number; positions carry depth, as in attention/tree_batch.h.
//
// With DraftChain the target's EAGLE-like use has num_steps - 1 sets, for its first drafts come
// from draft-extend (attention/chain_batch.h): set s has seq_len + s + 1 keys either way.
//
// A row that cannot be served is inert and reported (attention/row_fault.h): kTableRow, kLength,
// kNoBlock as in attention/chain_batch.h; kTree for a parent outside the tree so far, or one that
// was inert itself.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows and nodes; no allocation.

#ifndef ATTENTION_DRAFT_STEPS_H_
#define ATTENTION_DRAFT_STEPS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/draft_steps_args.h"
#include "attention/paged_batch.h"

namespace reprise {

// The batch of one step, on the host or on the device. REQUIRES: 0 <= step < num_steps.
PagedBatch DraftChainBatchOf(const DraftChainArgs& args, int step);
PagedBatch DraftLevelBatchOf(const DraftLevelArgs& args);

// What must hold of the sizes, whatever the arrays hold: among them (step + 1) * width <= 64, and
// tail_len, tail_mask and node_masks with DraftLevel. Errors: InvalidArgument naming the field.
absl::Status CheckDraftChainSizes(const DraftChainArgs& args);
absl::Status CheckDraftLevelSizes(const DraftLevelArgs& args);

// What the device does, over host memory. REQUIRES: the sizes are OK.
void DraftChainOnHost(const DraftChainArgs& args);
void DraftLevelOnHost(const DraftLevelArgs& args);

// The same with a Status. REQUIRES: arrays.row_faults is there. Errors: InvalidArgument naming the
// size, or the first row that cannot be served, with what it has.
absl::Status BuildDraftChain(const DraftChainArgs& args);
absl::StatusOr<PagedBatch> BuildDraftLevel(const DraftLevelArgs& args);

}  // namespace reprise

#endif  // ATTENTION_DRAFT_STEPS_H_
