// Arguments of block copies as plain values, and the device launchers. Callers use CopyBlocks()
// (copy_blocks.h).

#ifndef REPRISE_CACHE_OPS_COPY_BLOCKS_ARGS_H_
#define REPRISE_CACHE_OPS_COPY_BLOCKS_ARGS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/storage/block_extents.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Maximum number of copies that one launch takes as a parameter.
inline constexpr int kMaxInlineCopies = 3840;

// The extents of src and dst have the same sizes in the same order.
struct CopyBlocksArgs {
  BlockExtentList src = {};
  BlockExtentList dst = {};
  const BlockCopy* copies = nullptr;  // [num_copies]
  int64_t num_copies = 0;
};

// Errors: InvalidArgument naming the field. Does not read arrays.
inline absl::Status CheckCopyBlocks(const CopyBlocksArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_copies", args.num_copies, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("src.num_extents", args.src.num_extents, 0));
  REPRISE_RETURN_IF_ERROR(
      CheckEqual("dst.num_extents", args.dst.num_extents, args.src.num_extents));
  if (args.num_copies == 0 || args.src.num_extents == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("copies", args.copies));
  for (const BlockExtentList* list : {&args.src, &args.dst}) {
    const bool is_src = list == &args.src;
    REPRISE_RETURN_IF_ERROR(CheckGiven(is_src ? "src.extents" : "dst.extents", list->extents));
    REPRISE_RETURN_IF_ERROR(
        CheckGiven(is_src ? "src.host_extents" : "dst.host_extents", list->host_extents));
  }
  return absl::OkStatus();
}

// Enqueue the copies, which run concurrently. A copy with an id outside its store is skipped. No
// synchronisation and no allocation: may be captured. No launch if there is nothing to copy.
// Errors: as CheckCopyBlocks(); Internal if CUDA fails.

// args.copies is in host memory and is read before the call returns: a captured launch keeps its
// values. Errors: also InvalidArgument if args.num_copies > kMaxInlineCopies.
absl::Status LaunchInlineCopies(const CopyBlocksArgs& args, CUstream_st* stream);

// args.copies is in device memory and is read when the kernel runs.
absl::Status LaunchDeviceCopies(const CopyBlocksArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_COPY_BLOCKS_ARGS_H_
