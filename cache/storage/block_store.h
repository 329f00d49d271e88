// The blocks of a cache as sources and destinations of copies: their memory ranges on the device or
// the host.
//
//   BlockStore device = *BlockStore::Over(cache, {});
//   BlockStore host = *BlockStore::Pinned(device, 512);   // for swapped blocks
//   REPRISE_RETURN_IF_ERROR(CopyBlocks(device, device, copies));   // cache/ops/copy_blocks.h
//
// Blocks may be copied between stores of the same device and shape: extents of the same sizes in
// the same order. Stores over caches that KvCache::Create() allocates for one layout have the same
// shape, and so do the stores that Pinned() creates from them.
//
// Ownership: a store over a cache keeps the cache's tensors alive; a pinned store owns its memory.
// When a store is destroyed, no stream may still use its memory. Thread safety: const; the caller
// must order copies of the same blocks.

#ifndef REPRISE_CACHE_STORAGE_BLOCK_STORE_H_
#define REPRISE_CACHE_STORAGE_BLOCK_STORE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/mapped_buffer.h"
#include "reprise/cache/storage/block_extents.h"
#include "reprise/cache/storage/kv_cache.h"

namespace reprise {

struct BlockStoreOptions {
  KvSides sides = KvSides::kBoth;
  // Additional tensors [num_blocks, ...] on the cache's device, contiguous within a block. They are
  // copied with their blocks. Example: the marks of a KvCanary (cache/ops/kv_canary.h).
  std::vector<at::Tensor> with = {};
};

class BlockStore {
 public:
  // Creates a store over the blocks of `cache`, in all layers. Errors: InvalidArgument as from
  // BlockExtentsOf(), or naming a tensor of `with`; ResourceExhausted if the list of extents does
  // not fit on the device.
  static absl::StatusOr<BlockStore> Over(const KvCache& cache, const BlockStoreOptions& options);

  // Creates a store over an engine's tensors, each [num_blocks, ...] and contiguous within a block,
  // all on one device. Errors: InvalidArgument naming the tensor; ResourceExhausted as above.
  static absl::StatusOr<BlockStore> Over(std::vector<at::Tensor> tensors);

  // Allocates zeroed host memory for `num_blocks` blocks of the shape of `like`, one block after
  // the other. The memory is pinned and mapped for the device of `like`, or ordinary memory if that
  // device is the CPU. Errors: InvalidArgument unless num_blocks >= 1; ResourceExhausted.
  static absl::StatusOr<BlockStore> Pinned(const BlockStore& like, int num_blocks);

  // The device on which copies run: the cache's device, also for a pinned store.
  at::Device device() const { return device_; }
  int num_blocks() const { return num_blocks_; }
  // Number of bytes that a copy of one block moves.
  int64_t bytes_per_block() const { return bytes_per_block_; }
  absl::Span<const BlockExtent> extents() const { return extents_; }
  // Whether the store owns host memory allocated by Pinned().
  bool is_pinned() const { return host_ != nullptr; }

  // Whether blocks may be copied between this store and `other`.
  bool IsLike(const BlockStore& other) const;

  // The extents with device addresses. Valid as long as the store exists.
  BlockExtentList device_extents() const;

 private:
  BlockStore() = default;
  absl::Status ListExtents();

  at::Device device_ = at::kCPU;
  int num_blocks_ = 0;
  int64_t bytes_per_block_ = 0;
  std::vector<BlockExtent> extents_;
  std::vector<at::Tensor> kept_;             // tensors to which the extents point
  std::shared_ptr<MappedBuffer> host_;       // pinned stores only
  std::vector<BlockExtent> device_extents_;  // with device addresses; empty on the CPU
  at::Tensor list_;                          // copy of device_extents_ on the device, as bytes
  int64_t max_extent_bytes_ = 0;
  int word_bytes_ = 1;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_BLOCK_STORE_H_
