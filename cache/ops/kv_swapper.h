// Moves blocks between a cache on a device and pinned host memory, concurrently with other device
// work. Events order the copies in both directions.
//
//   std::unique_ptr<KvSwapper> swapper = *KvSwapper::Create(cache, {.num_host_blocks = 4096});
//   // A sequence is preempted: its blocks 7, 9 are copied to host blocks 1, 2. The step that wrote
//   // them is already on the current stream.
//   SwapTicket out = *swapper->SwapOut({{.src = 7, .dst = 1}, {.src = 9, .dst = 2}});
//   ... device blocks 7, 9 must not be written until swapper->Passed(out)
//   // It is swapped in to device blocks 3, 4, which were last used on the current stream.
//   SwapTicket in = *swapper->SwapIn({{.src = 1, .dst = 3}, {.src = 2, .dst = 4}});
//   REPRISE_RETURN_IF_ERROR(swapper->Await(in));    // on the current stream, before its next step
//   ... host blocks 1, 2 may be reused immediately by the next SwapOut()
//
// The block manager chooses the blocks (cache/block_copy.h); the swapper moves their bytes.
//
// Order of the work:
//
//   1. A swap runs after all work that was on the current stream: the writes of the blocks to swap
//      out, the last reads of the blocks to overwrite. SwapOut() and SwapIn() ensure this with an
//      event.
//   2. Swaps run one after the other, in the order of the calls, so a host block may be reused
//      immediately. They all run on the swapper's stream.
//   3. A swapped-out device block may be overwritten, and a swapped-in block read, only after the
//      swap. The caller ensures this: with Await() for work on a stream, or by waiting for Passed()
//      before it reallocates the block. SwapStore (cache/blocks/swap_store.h) does the latter, with
//      fences over stream() (MakeCudaFence).
//
// On the CPU, swaps complete before the call returns, and Passed() is always true.
//
// Ownership: keeps the cache's tensors alive. The destructor waits for swaps in flight. Thread
// safety: not thread-safe.

#ifndef REPRISE_CACHE_OPS_KV_SWAPPER_H_
#define REPRISE_CACHE_OPS_KV_SWAPPER_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/block_copy.h"
#include "reprise/cache/ops/copy_blocks.h"
#include "reprise/cache/storage/block_store.h"
#include "reprise/cache/storage/kv_cache.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

struct KvSwapperOptions {
  int num_host_blocks = 0;
  CopyPath path = CopyPath::kAuto;
  BlockStoreOptions blocks = {};  // the sides of the cache, and additional tensors to move
};

// The sequence number of a swap of one swapper, starting at 1.
using SwapTicket = StrongId<struct SwapTicketTag, int64_t>;

class KvSwapper {
 public:
  // Allocates host memory for num_host_blocks blocks, and a stream. Errors: InvalidArgument unless
  // num_host_blocks >= 1, or as from BlockStore::Over(); ResourceExhausted; Internal if CUDA fails.
  static absl::StatusOr<std::unique_ptr<KvSwapper>> Create(const KvCache& cache,
                                                           const KvSwapperOptions& options);
  ~KvSwapper();
  KvSwapper(const KvSwapper&) = delete;
  KvSwapper& operator=(const KvSwapper&) = delete;

  // Copy device blocks (src) to host blocks (dst), and the reverse. `copies` is read before the
  // call returns. The current stream must not be capturing. Errors: as from CopyBlocks(), without
  // any copy; Internal if CUDA fails.
  [[nodiscard]] absl::StatusOr<SwapTicket> SwapOut(absl::Span<const BlockCopy> copies);
  [[nodiscard]] absl::StatusOr<SwapTicket> SwapIn(absl::Span<const BlockCopy> copies);

  // Makes work that is enqueued on the current stream from now on wait for the swap. Does not block
  // the host. Here and below: errors are Internal if CUDA fails. REQUIRES: a ticket of this
  // swapper.
  absl::Status Await(SwapTicket ticket);

  // Whether the swap has completed. Does not block. True if the device has failed: no further swap
  // runs, and the next call that enqueues work reports the error.
  bool Passed(SwapTicket ticket);

  // Blocks the host until the swap has completed.
  absl::Status Wait(SwapTicket ticket);

  // The stream of the swaps, or null on the CPU.
  CUstream_st* stream() const;

  const BlockStore& device_blocks() const { return device_blocks_; }
  const BlockStore& host_blocks() const { return host_blocks_; }

 private:
  // The stream, and the events of the swaps in flight.
  struct Cuda;

  KvSwapper(BlockStore device_blocks, BlockStore host_blocks, CopyPath path);
  absl::StatusOr<SwapTicket> Swap(const BlockStore& src, const BlockStore& dst,
                                  absl::Span<const BlockCopy> copies);

  const BlockStore device_blocks_;
  const BlockStore host_blocks_;
  const CopyPath path_;
  int64_t num_swaps_ = 0;
  std::unique_ptr<Cuda> cuda_;  // null on the CPU
};

}  // namespace reprise

#endif  // REPRISE_CACHE_OPS_KV_SWAPPER_H_
