// Moves blocks between a cache on a device and pinned memory of the host, concurrently with the
// work of the device, with events both ways.
//
//   std::unique_ptr<KvSwapper> swapper = *KvSwapper::Create(cache, {.num_host_blocks = 4096});
//   // A sequence is preempted: its blocks 7, 9 go to host blocks 1, 2. The step that wrote them is
//   // on the current stream already.
//   SwapTicket out = *swapper->SwapOut({{.src = 7, .dst = 1}, {.src = 9, .dst = 2}});
//   ... device blocks 7, 9 must not be written before swapper->Passed(out)
//   // It comes back into device blocks 3, 4, which the current stream used last.
//   SwapTicket in = *swapper->SwapIn({{.src = 1, .dst = 3}, {.src = 2, .dst = 4}});
//   REPRISE_RETURN_IF_ERROR(swapper->Await(in));    // on the current stream, before its next step
//   ... host blocks 1, 2 may be given to the next SwapOut() at once
//
// The block manager chooses the blocks (cache/block_copy.h); the swapper moves their bytes.
//
// Order of the work:
//
//   1. A swap runs after all work that the current stream had been given: the writes of blocks that
//      go out, the last reads of blocks that are overwritten. SwapOut() and SwapIn() order it, with
//      an event.
//   2. Swaps run one after the other, in the order of the calls, so a host block may be reused at
//      once. The swapper's own stream orders them.
//   3. A device block that went out is written again, or one that came in is read, only after the
//      swap. The caller orders it: with Await() for work on a stream, or by waiting for Passed()
//      before handing out the block. SwapStore (cache/blocks/swap_store.h) does the latter with
//      fences over stream() (MakeCudaFence).
//
// On the CPU swaps are done when they return, and all tickets have passed.
//
// Ownership: keeps the cache's tensors alive; its end waits for the swaps in flight. Thread safety:
// none.

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
  BlockStoreOptions blocks = {};  // the sides of the cache, and tensors that move with it
};

// Counts the swaps of a swapper, from 1.
using SwapTicket = StrongId<struct SwapTicketTag, int64_t>;

class KvSwapper {
 public:
  // Allocates host memory for num_host_blocks blocks, and a stream.
  // Errors: InvalidArgument unless num_host_blocks >= 1, or as from BlockStore::Over();
  // ResourceExhausted; Internal if CUDA fails.
  static absl::StatusOr<std::unique_ptr<KvSwapper>> Create(const KvCache& cache,
                                                           const KvSwapperOptions& options);
  ~KvSwapper();
  KvSwapper(const KvSwapper&) = delete;
  KvSwapper& operator=(const KvSwapper&) = delete;

  // From device blocks (src) to host blocks (dst), and back. `copies` is read before they return.
  // The current stream must not be under capture.
  // Errors: as from CopyBlocks(), and nothing has been moved; Internal if CUDA fails.
  [[nodiscard]] absl::StatusOr<SwapTicket> SwapOut(absl::Span<const BlockCopy> copies);
  [[nodiscard]] absl::StatusOr<SwapTicket> SwapIn(absl::Span<const BlockCopy> copies);

  // Work enqueued on the current stream from now on runs after the swap. Does not block the host.
  // Here and below: errors are Internal if CUDA fails. REQUIRES: a ticket of this swapper.
  absl::Status Await(SwapTicket ticket);

  // Whether the swap is done. Does not block. True if the device has failed: no swap runs any more,
  // and the next call that enqueues work reports it.
  bool Passed(SwapTicket ticket);

  // Blocks the host until Passed().
  absl::Status Wait(SwapTicket ticket);

  // The stream of the swaps; null on the CPU.
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
