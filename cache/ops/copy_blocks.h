// Copies whole blocks of all layers: copy-on-write on one device, swapping to and from the host,
// and transfers between caches.
//
//   BlockStore store = *BlockStore::Over(cache, {});
//   const BlockCopy copies[] = {{.src = 5, .dst = 9}, {.src = 5, .dst = 12}};  // one to many
//   REPRISE_RETURN_IF_ERROR(CopyBlocks(store, store, copies));
//
// A list in host memory behaves as if its copies ran one after the other. With the kernel,
// independent copies share one launch, up to 3,840 copies. A new launch begins with a copy that
// reads or writes a block which an earlier copy writes, or that writes a block which an earlier
// copy reads.
//
// A list in device memory is one launch of any length. All its copies run concurrently, so no
// destination may occur twice or be a source. Copies with ids outside the stores (-1 for padding
// rows) are skipped.
//
// Block ids are checked only against the range of the store: a copy to the null block is not
// rejected. See cache/storage/block_store.h for stores; `src` and `dst` may be the same store.
//
// On the CPU, the copies have completed when the call returns. On CUDA, they are enqueued on the
// current stream, without synchronisation and without device allocation. With CopyPath::kKernel the
// call may be captured; a list in host memory is captured with its values.
//
// Errors: InvalidArgument, before any copy, for one of these: the id of a copy is outside its store
// (the message names the copy); the stores have different shapes or devices; a list is not a
// contiguous [n, 2] int32 tensor on the stores' device. Unimplemented for a path that the device
// does not support. Internal if CUDA fails.
//
// Thread safety: calls that access different blocks may run concurrently.

#ifndef REPRISE_CACHE_OPS_COPY_BLOCKS_H_
#define REPRISE_CACHE_OPS_COPY_BLOCKS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/storage/block_store.h"

namespace reprise {

// The way bytes are moved on CUDA.
enum class CopyPath : int8_t {
  kAuto,        // copy engine between host and device if extents are large; otherwise the kernel
  kKernel,      // a kernel that accesses host memory directly over the bus
  kCopyEngine,  // one transfer per extent and block or run of adjacent blocks; leaves the SMs free
};

absl::Status CopyBlocks(const BlockStore& src, const BlockStore& dst,
                        absl::Span<const BlockCopy> copies, CopyPath path = CopyPath::kAuto);

// `copies`: [n, 2] int32, contiguous, on the stores' device: source and destination. Uses the
// kernel.
absl::Status CopyBlocks(const BlockStore& src, const BlockStore& dst, const at::Tensor& copies);

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_COPY_BLOCKS_H_
