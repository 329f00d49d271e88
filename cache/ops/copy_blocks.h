// Copies of whole blocks, all layers at once: copy-on-write on one device, swapping to and from
// the host, moves between caches.
//
//   BlockStore store = *BlockStore::Over(cache, {});
//   const BlockCopy copies[] = {{.src = 5, .dst = 9}, {.src = 5, .dst = 12}};  // one to many
//   REPRISE_RETURN_IF_ERROR(CopyBlocks(store, store, copies));
//
// The copies of a list on the host run one after the other. Copies that do not touch each other's
// blocks are one launch, up to 3,840 of them; a copy that reads or writes a block that an earlier
// one of the list writes, or writes one that an earlier one reads, begins a further launch.
//
// A list on the device is one launch of any length, with all copies at the same time, so no
// destination may occur twice in it or be a source. Ids outside of the stores (-1 for a row of
// padding) are left out.
//
// Block ids are checked for their range only: a copy into the null block is not refused. Stores are
// those of cache/storage/block_store.h; src and dst may be one.
//
// On the CPU: done when it returns. On CUDA: enqueued on the current stream, no synchronisation and
// no allocation on the device; may be captured (the host's list with its values), through
// CopyPath::kKernel.
//
// Errors: InvalidArgument, before anything is copied, naming the copy whose id is outside of its
// store, stores that are not alike, or a list that is not [n, 2] int32; Unimplemented for a path
// that the device does not have; Internal if CUDA fails.
//
// Thread safety: calls that touch different blocks may run at once.

#ifndef REPRISE_CACHE_OPS_COPY_BLOCKS_H_
#define REPRISE_CACHE_OPS_COPY_BLOCKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/storage/block_store.h"

namespace reprise {

// How the bytes are moved on CUDA.
enum class CopyPath : int8_t {
  kAuto,        // the copy engine between host and device where extents are large; else the kernel
  kKernel,      // a kernel, which reads and writes the host's memory over the bus itself
  kCopyEngine,  // a transfer for each extent and run of neighbouring blocks; leaves the SMs free
};

absl::Status CopyBlocks(const BlockStore& src, const BlockStore& dst,
                        absl::Span<const BlockCopy> copies, CopyPath path = CopyPath::kAuto);

// `copies`: [n, 2] int32, contiguous, on the stores' device: source and destination. By the kernel.
absl::Status CopyBlocks(const BlockStore& src, const BlockStore& dst, const at::Tensor& copies);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_COPY_BLOCKS_H_
