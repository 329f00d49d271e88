// The token of each place of the cache, block by block, for drafters that read a sequence's history
// (TokenHistory in attention/speculation/token_history.h): a sequence that begins with blocks which others have
// computed, as a prefix, a fork, or after a swap, has their tokens from here.
//
//   REPRISE_ASSIGN_OR_RETURN(BlockTokens tokens,
//                            BlockTokens::Allocate(num_blocks, block_size, groups, device));
//   RefillArgs{..., .place_tokens = tokens.places()};        // each step: its tokens but for drafts
//   AcceptDraftsArgs{..., .place_tokens = tokens.places()};  // drafts that were accepted
//   // Behind the refill in which a sequence joins with keys in the cache:
//   REPRISE_RETURN_IF_ERROR(tokens.Recall(slots, join));
//
// blocks() are copied and swapped with the cache's (BlockStoreOptions::with). Places that were never
// written hold -1.
//
// They are those of one group, of full attention if there is one: of other groups the tokens that
// have left the window are not known, and stay -1 in the history.
//
// Thread safety: one owner.

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
  // For blocks of `block_size` tokens. REQUIRES: a group that is not of an encoder's keys. Errors:
  // ResourceExhausted if the device has too little memory.
  static absl::StatusOr<BlockTokens> Allocate(int num_blocks, int block_size,
                                              absl::Span<const KvGroupSpec> groups,
                                              c10::Device device);

  // The group whose slots and tables they follow.
  int group() const { return group_; }

  // [num_blocks, block_size] int32
  const at::Tensor& blocks() const { return tokens_; }

  // Where refill and verification write them.
  PlaceTokens places() const;

  // Fills in the history of a slot that has joined with tokens in the cache, whose tables are filled.
  // `slots` lie on the device of blocks(). Enqueued on LibTorch's current stream, without
  // synchronisation.
  absl::Status Recall(const SlotState& slots, const SlotJoin& join) const;

  void AddTo(Fingerprint& fingerprint) const;

 private:
  BlockTokens(at::Tensor tokens, int group) : tokens_(std::move(tokens)), group_(group) {}

  at::Tensor tokens_;
  int group_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_BLOCK_TOKENS_H_
