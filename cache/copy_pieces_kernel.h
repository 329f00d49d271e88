// Copying blocks on CUDA: see cache/copy_blocks.h for what it does. Callers use CopyBlocks().

#ifndef CACHE_COPY_PIECES_KERNEL_H_
#define CACHE_COPY_PIECES_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cache/block_copy.h"
#include "cache/copy_pieces.h"

namespace reprise {

// Copies that one launch takes with it as a parameter.
inline constexpr int kMaxInlineCopies = 3840;

// Enqueue the copies, all at the same time; one with an id outside of its store is left out. Both
// stores have equally many pieces of the same bytes. No synchronisation, no allocation: may be
// captured. No launch for nothing.

// `copies` is the host's and is read before the call returns: a captured launch keeps the values.
// REQUIRES: num_copies <= kMaxInlineCopies.
cudaError_t LaunchInlineCopies(const CopyPieces& src, const CopyPieces& dst,
                               const BlockCopy* copies, int num_copies, cudaStream_t stream);

// `copies` is the device's and is read when the kernel runs.
cudaError_t LaunchDeviceCopies(const CopyPieces& src, const CopyPieces& dst,
                               const BlockCopy* copies, int64_t num_copies, cudaStream_t stream);

}  // namespace reprise

#endif  // CACHE_COPY_PIECES_KERNEL_H_
