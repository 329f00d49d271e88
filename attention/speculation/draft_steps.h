// Builds the metadata of each step of a draft model on the device, without the host. S5, S13.
//
// A draft model runs num_steps times after a verified sequence; the drafts of one step are the
// input of the next. The metadata of a step does not depend on which tokens were drafted, except
// for the shape of a tree:
//
//   topk = 1   a chain: step s has one token per row, at seq_len + s, with seq_len + s + 1 keys.
//              One launch makes the sets of all steps beforehand (DraftChain).
//   topk > 1   a tree that grows by a level of `width` = topk nodes each step. Node i of level s
//              is number s * width + i; its parent is any node before the level, chosen from the
//              level's scores: one launch per step (DraftLevel), from the parents that the
//              previous step left on the device.
//
// A row of seq_len 10, width 2, parents {-1, -1}, then {1, 1}, then {2, 3}:
//
//   level  nodes  keys      positions  tail_len  tail_mask (binary)
//   0      0 1    10 11     10 10      2         1 10
//   1      2 3    12 13     11 11      4         110 1010
//   2      4 5    14 15     12 12      6         10110 101010
//
// Rows keep their places: row r's tokens are [r * width, (r + 1) * width) in every step, live or
// not, so the next step reads the sampled tokens where this step writes them. A row whose drafts
// would exceed max_context_len, or the table's width, is inert in that step and all later steps.
// Keys of drafts are in the cache by number; positions encode depth, as in
// attention/speculation/tree_batch.h.
//
// EAGLE-like use of DraftChain has num_steps - 1 sets, because the first drafts come from
// draft-extend (attention/metadata/chain_batch.h): set s has seq_len + s + 1 keys either way.
//
// An invalid row is inert and reported (base/row_fault.h): kTableRow, kLength, kNoBlock as in
// attention/metadata/chain_batch.h; kTree for a parent that is outside the tree so far or is inert.
//
// Thread safety: pure functions of their arguments. Cost: linear in rows and nodes; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_DRAFT_STEPS_H_
#define REPRISE_ATTENTION_SPECULATION_DRAFT_STEPS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/speculation/draft_steps_args.h"

struct CUstream_st;

namespace reprise {

// The batch over the arrays of one step, on the host or on the device. REQUIRES: 0 <= step <
// num_steps.
PagedBatch DraftChainBatch(const DraftChainArgs& args, int step);
PagedBatch DraftLevelBatch(const DraftLevelArgs& args);

// Checks sizes, strides and the presence of arrays, not their content; including
// (step + 1) * width <= 64, and tail_len, tail_mask and node_masks for a level. Errors:
// InvalidArgument naming the field.
absl::Status CheckDraftChain(const DraftChainArgs& args);
absl::Status CheckDraftLevel(const DraftLevelArgs& args);

// Does the same as the device form, over host memory. REQUIRES: the check of the arguments is OK.
void DraftChainOnHost(const DraftChainArgs& args);
void DraftLevelOnHost(const DraftLevelArgs& args);

// Calls the check and the host form. Errors: InvalidArgument from the check, for absent row_faults,
// or for the first invalid row, with its values.
absl::Status BuildDraftChain(const DraftChainArgs& args);
absl::StatusOr<PagedBatch> BuildDraftLevel(const DraftLevelArgs& args);

// Does the same over device memory: one launch each, no synchronisation, no allocation, may be
// captured. Errors: InvalidArgument as from the check, before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target draft_steps_cuda).
absl::Status LaunchDraftChain(const DraftChainArgs& args, CUstream_st* stream);
absl::Status LaunchDraftLevel(const DraftLevelArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_DRAFT_STEPS_H_
