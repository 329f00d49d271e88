// The token of each place of the cache, block by block, for drafters that read a sequence's history
// (TokenHistory in runner/slots/slot_state.h): a sequence that begins with blocks which others have
// computed, as a prefix, a fork, or after a swap, has their tokens from here.
//
//   REPRISE_ASSIGN_OR_RETURN(BlockTokens tokens,
//                            BlockTokens::Allocate(num_blocks, block_size, groups, device));
//   // Each step, behind its drafts; may be captured:
//   REPRISE_RETURN_IF_ERROR(tokens.Keep(slots, token_ids));
//   // Before a step in which sequences join:
//   REPRISE_RETURN_IF_ERROR(tokens.Recall(slots, batch.joins));
//   // In place of Keep(), where histories matter behind swaps alone: before blocks are moved out.
//   REPRISE_RETURN_IF_ERROR(tokens.KeepHistories(slots, batch.leaves));
//
// Tokens are kept as keys are: at the slots of the step's tokens, drafts included. So those of
// rejected drafts lie beyond the sequence's end until the next step writes over them; blocks() are
// copied and swapped with the cache's (BlockStoreOptions::with), and trees move them with their keys
// (layer()). Places that were never written hold -1.
//
// They are those of one group, of full attention if there is one: of other groups the tokens that
// have left the window are not known, and stay -1 in the history.
//
// Work is enqueued on LibTorch's current stream, without synchronisation. Thread safety: one owner.

#ifndef RUNNER_SPECULATION_BLOCK_TOKENS_H_
#define RUNNER_SPECULATION_BLOCK_TOKENS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "cache/kv_group.h"
#include "cache/storage/kv_layer.h"
#include "graphs/fingerprint.h"
#include "runner/slots/slot_state.h"
#include "runner/slots/step_delta.h"

namespace reprise {

class BlockTokens {
 public:
  // For blocks of `block_size` tokens. REQUIRES: a group that is not of an encoder's keys. Errors:
  // ResourceExhausted if the device has too little memory.
  static absl::StatusOr<BlockTokens> Allocate(int num_blocks, int block_size,
                                              absl::Span<const KvGroupSpec> groups,
                                              c10::Device device);

  // The group whose slots and tables they follow.
  int group() const { return group_; }

  // [num_blocks, block_size] int32
  at::Tensor blocks() const { return tokens_.narrow(0, 0, tokens_.size(0) - 1); }

  // The same as keys of one head and one element, in place of a layer of group().
  KvLayer layer() const;

  // Keeps the tokens of a step: `slots` [num_tokens] int64 of group(), -1 for tokens that are not
  // kept; token_ids [num_tokens] int32. May be captured.
  absl::Status Keep(const at::Tensor& slots, const at::Tensor& token_ids) const;

  // Keeps the histories of slots that leave, whose tables are filled, in all of their blocks.
  absl::Status KeepHistories(const SlotState& slots, absl::Span<const SlotId> leaves) const;

  // Fills in the histories of slots that have joined with tokens in the cache, whose tables are
  // filled. `slots` lie on the device of blocks().
  absl::Status Recall(const SlotState& slots, absl::Span<const SlotJoin> joins) const;

  void AddTo(Fingerprint& fingerprint) const;

 private:
  BlockTokens(at::Tensor tokens, int group) : tokens_(std::move(tokens)), group_(group) {}

  at::Tensor tokens_;  // [num_blocks + 1, block_size] int32: the last one for tokens without a slot
  int group_;
};

}  // namespace reprise

#endif  // RUNNER_SPECULATION_BLOCK_TOKENS_H_
