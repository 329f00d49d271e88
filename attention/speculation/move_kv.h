// Moves keys and values of tokens between slots, in many layers with one launch. Used after
// acceptance of a tree (attention/speculation/accept_drafts.h).
//
//   REPRISE_ASSIGN_OR_RETURN(MoveKvArgs args, MakeMoveKvArgs(layers));
//   args.move_from = accept.move_from; ...
//   MoveKv(args);                    // or LaunchMoveKv(args, stream) on a GPU
//
// The moves of a row are performed in order. REQUIRES: a destination may be the source of an
// earlier move, but not of a later move. Rows are processed in any order or concurrently, and must
// not share slots. The copy is bitwise for every dtype. Scales do not move, because they are not
// per token.
//
// Thread safety: not thread-safe; writes the cache. Cost: linear in the bytes moved; no allocation.

#ifndef REPRISE_ATTENTION_SPECULATION_MOVE_KV_H_
#define REPRISE_ATTENTION_SPECULATION_MOVE_KV_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/speculation/move_kv_args.h"
#include "reprise/cache/storage/kv_layer.h"

struct CUstream_st;

namespace reprise {

// Returns arguments with the fields of the layers set. The caller sets the moves.
// Errors: InvalidArgument if there are no layers or more than kMaxMoveLayers, if the rope part's
// elements differ in size from the other elements, or if a layer differs from the first in dtype,
// sizes or strides: such layers need a separate launch.
absl::StatusOr<MoveKvArgs> MakeMoveKvArgs(absl::Span<const KvLayer> layers);

// Checks sizes, strides and the presence of arrays, but not the content of arrays.
// Errors: InvalidArgument that names the field.
absl::Status CheckMoveKv(const MoveKvArgs& args);

// Moves keys and values in host memory, like LaunchMoveKv() on the device.
// REQUIRES: CheckMoveKv(args) is OK.
void MoveKvOnHost(const MoveKvArgs& args);

// Calls CheckMoveKv() and MoveKvOnHost(). Errors: those of CheckMoveKv().
absl::Status MoveKv(const MoveKvArgs& args);

// Moves keys and values in device memory. May be captured.
// Errors: InvalidArgument from CheckMoveKv(), before any CUDA call; Internal if the launch fails.
// Cost: one launch; no launch if num_rows or max_moves is 0. Does not synchronise or allocate. Only
// in builds with CUDA (target move_kv_cuda).
absl::Status LaunchMoveKv(const MoveKvArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_MOVE_KV_H_
