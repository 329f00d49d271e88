// Moves keys and values of tokens from slots to slots, in many layers at once: after acceptance of
// a tree (attention/accept_drafts.h).
//
//   REPRISE_ASSIGN_OR_RETURN(MoveKvParams params, MakeMoveKvParams(layers));
//   params.move_from = accept.move_from; ...
//   MoveKvOnHost(params);            // or LaunchMoveKv(params, stream), attention/move_kv_kernel.h
//
// Moves of a row are done in order: a destination may have been a source before, never a source
// that is still to come. Rows are done in any order, or at once: their slots are their own. Bits
// are copied, whatever the dtype; scales stay, for they are not a token's.
//
// Thread safety: none; writes the cache. Cost: bytes moved; no allocation.

#ifndef ATTENTION_MOVE_KV_H_
#define ATTENTION_MOVE_KV_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "attention/move_kv_params.h"
#include "cache/kv_layer.h"

namespace reprise {

// The layers' part of the parameters; the moves are the caller's to add. Errors: InvalidArgument if
// there are no layers or more than kMaxMoveLayers, or if one differs from the first in dtype,
// sizes or strides: such layers need a launch of their own.
absl::StatusOr<MoveKvParams> MakeMoveKvParams(absl::Span<const KvLayer> layers);

// What the device does, over host memory.
void MoveKvOnHost(const MoveKvParams& params);

}  // namespace reprise

#endif  // ATTENTION_MOVE_KV_H_
