// The blocks of a cache as sources and destinations of copies: where their bytes are, on the device
// or on the host.
//
//   BlockStore device = *BlockStore::Over(cache, {});
//   BlockStore host = *BlockStore::Pinned(device, 512);   // swapped blocks, same bytes each
//   REPRISE_RETURN_IF_ERROR(CopyBlocks(device, device, copies));   // cache/ops/copy_blocks.h
//
// Blocks may be copied between stores that are alike: extents of the same sizes in the same order.
// The stores over caches of one layout are alike, and so are those that Pinned() makes of them.
//
// Ownership: a store over a cache keeps the cache's tensors alive; a pinned one owns its memory.
// Nothing may use the store's memory when it ends, on any stream. Thread safety: const; copies of
// the same blocks must be ordered by the caller.

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
  // Further tensors [num_blocks, ...], contiguous within a block, that are copied with their
  // blocks, for example the marks of a KvCanary (cache/ops/kv_canary.h). On the cache's device.
  std::vector<at::Tensor> with = {};
};

class BlockStore {
 public:
  // The blocks of `cache`, all layers.
  // Errors: InvalidArgument as from BlockExtentsOf(), or naming a tensor of `with`;
  // ResourceExhausted if the list of extents does not fit on the device.
  static absl::StatusOr<BlockStore> Over(const KvCache& cache, const BlockStoreOptions& options);

  // The blocks of an engine's own tensors, each [num_blocks, ...] and contiguous within a block, on
  // one device. Errors: InvalidArgument naming the tensor; ResourceExhausted as above.
  static absl::StatusOr<BlockStore> Over(std::vector<at::Tensor> tensors);

  // Host memory for `num_blocks` blocks like those of `like`, zeroed, one block after the other:
  // pinned and addressable by the device of `like`, or ordinary memory if that is the CPU.
  // Errors: InvalidArgument unless num_blocks >= 1; ResourceExhausted.
  static absl::StatusOr<BlockStore> Pinned(const BlockStore& like, int num_blocks);

  // The device that copies run on: the cache's, also for a pinned store of it.
  at::Device device() const { return device_; }
  int num_blocks() const { return num_blocks_; }
  // Bytes that a copy of one block moves.
  int64_t bytes_per_block() const { return bytes_per_block_; }
  absl::Span<const BlockExtent> extents() const { return extents_; }
  // Whether the store owns memory of the host, made by Pinned().
  bool is_pinned() const { return host_ != nullptr; }

  // Whether blocks may be copied between them.
  bool IsLike(const BlockStore& other) const;

  // The extents as the device addresses them. Valid as long as the store.
  BlockExtentList device_extents() const;

 private:
  BlockStore() = default;
  absl::Status ListExtents();

  at::Device device_ = at::kCPU;
  int num_blocks_ = 0;
  int64_t bytes_per_block_ = 0;
  std::vector<BlockExtent> extents_;
  std::vector<at::Tensor> kept_;             // tensors that the extents point into
  std::shared_ptr<MappedBuffer> host_;       // of a pinned store
  std::vector<BlockExtent> device_extents_;  // by device addresses; empty on the CPU
  at::Tensor list_;                          // the same on the device, as bytes
  int64_t max_extent_bytes_ = 0;
  int word_bytes_ = 1;
};

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_BLOCK_STORE_H_
