// Stores the token of each cache position, block by block, for drafters that read the history of a
// sequence (TokenHistory in attention/speculation/token_history.h). A sequence may start with
// blocks that another sequence has computed (a prefix hit or a fork), or continue after a swap.
// Recall() then copies the tokens of these blocks into its history.
//
//   REPRISE_ASSIGN_OR_RETURN(BlockTokens tokens,
//                            BlockTokens::Allocate(num_blocks, block_size, groups, device));
//   RefillArgs{..., .place_tokens = tokens.places()};        // each step: its tokens except drafts
//   AcceptDraftsArgs{..., .place_tokens = tokens.places()};  // drafts that were accepted
//   // After the refill by which a sequence joins with tokens in the cache:
//   REPRISE_RETURN_IF_ERROR(tokens.Recall(slots, join));
//
// blocks() must be copied and swapped together with the blocks of the cache
// (BlockStoreOptions::with). Positions that were never written hold -1.
//
// The tokens follow the block tables of one KV group: a group of full attention if one exists. In a
// group of another kind, tokens that have left the window or chunk are unknown: Recall() writes -1
// for them.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_SPECULATION_BLOCK_TOKENS_H_
#define REPRISE_RUNNER_SPECULATION_BLOCK_TOKENS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/cache/kv_group.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/slot_state.h"

namespace reprise {

class BlockTokens {
 public:
  // Allocates storage for blocks of `block_size` tokens. REQUIRES: at least one group holds keys of
  // the sequence's own tokens (not only KvRetention::kCross). Errors: ResourceExhausted if the
  // device has too little memory.
  static absl::StatusOr<BlockTokens> Allocate(int num_blocks, int block_size,
                                              absl::Span<const KvGroupSpec> groups,
                                              c10::Device device);

  // The KV group whose slots and block tables the tokens follow.
  int group() const { return group_; }

  // [num_blocks, block_size] int32
  const at::Tensor& blocks() const { return tokens_; }

  // The destination of the tokens that refill and verification write.
  PlaceTokens places() const;

  // Writes the history of a slot that has joined with tokens in the cache. REQUIRES: refill has
  // filled the slot's block tables; `slots` is on the device of blocks(). Enqueued on LibTorch's
  // current stream. Does not synchronise.
  absl::Status Recall(const SlotState& slots, const SlotJoin& join) const;

  void AddTo(Fingerprint& fingerprint) const;

 private:
  BlockTokens(at::Tensor tokens, int group) : tokens_(std::move(tokens)), group_(group) {}

  at::Tensor tokens_;
  int group_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_BLOCK_TOKENS_H_
