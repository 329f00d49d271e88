// Moves keys and values of tokens from slots to slots, in many layers at once: after acceptance of
// a tree (attention/speculation/accept_drafts.h).
//
//   REPRISE_ASSIGN_OR_RETURN(MoveKvArgs args, MakeMoveKvArgs(layers));
//   args.move_from = accept.move_from; ...
//   MoveKv(args);                    // or LaunchMoveKv(args, stream) on a GPU
//
// Moves of a row are done in order: a destination may be the source of an earlier move, never of a
// later one. Rows are processed in any order or concurrently, because they share no slots. Bits are
// copied, whatever the dtype; scales do not move, because they are not per token.
//
// Thread safety: none; writes the cache. Cost: bytes moved; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_MOVE_KV_H_
#define REPRISE_ATTENTION_SPECULATION_MOVE_KV_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/speculation/move_kv_args.h"
#include "reprise/cache/storage/kv_layer.h"

struct CUstream_st;

namespace reprise {

// Fills the layers' part of the arguments; the caller adds the moves. Errors: InvalidArgument if
// there are no layers or more than kMaxMoveLayers, or if one differs from the first in dtype, sizes
// or strides: such layers need a separate launch.
absl::StatusOr<MoveKvArgs> MakeMoveKvArgs(absl::Span<const KvLayer> layers);

// Checks sizes, strides and the presence of arrays, not their content. Errors: InvalidArgument
// naming the field.
absl::Status CheckMoveKv(const MoveKvArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckMoveKv(args) is OK.
void MoveKvOnHost(const MoveKvArgs& args);

// Calls CheckMoveKv() and MoveKvOnHost().
absl::Status MoveKv(const MoveKvArgs& args);

// Does the same over device memory: one launch, or none if there is nothing to move; no
// synchronisation, no allocation, may be captured.
// Errors: InvalidArgument as from CheckMoveKv(), before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target move_kv_cuda).
absl::Status LaunchMoveKv(const MoveKvArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_MOVE_KV_H_
