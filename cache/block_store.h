// The blocks of a cache as things to copy: where their bytes are, on this device or on the host.
//
//   BlockStore device = *BlockStore::Over(cache, {});
//   BlockStore host = *BlockStore::Pinned(device, 512);   // swapped blocks, same bytes each
//   REPRISE_RETURN_IF_ERROR(CopyBlocks(device, device, copies));   // cache/copy_blocks.h
//
// Blocks may be copied between stores that are alike: extents of the same sizes in the same order.
// Those are the stores over caches of one layout, and what Pinned() makes of them.
//
// Ownership: a store over a cache keeps the cache's tensors alive; a pinned one owns its memory.
// Nothing may use the store's memory when it ends, on any stream. Thread safety: const; the bytes
// belong to whoever copies.

#ifndef CACHE_BLOCK_STORE_H_
#define CACHE_BLOCK_STORE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mapped_buffer.h"
#include "cache/block_extents.h"
#include "cache/copy_pieces.h"
#include "cache/kv_cache.h"

namespace reprise {

struct BlockStoreOptions {
  KvSides sides = KvSides::kBoth;
  // Further tensors [num_blocks, ...], contiguous within a block, that go with their blocks: the
  // marks of a KvCanary (cache/kv_canary.h), say. On the cache's device.
  std::vector<at::Tensor> with = {};
};

class BlockStore {
 public:
  // The blocks of `cache`, all layers.
  // Errors: InvalidArgument as from BlockExtentsOf(), or naming a tensor of `with`;
  // ResourceExhausted if the list of pieces does not fit on the device.
  static absl::StatusOr<BlockStore> Over(const KvCache& cache, const BlockStoreOptions& options);

  // The blocks of an engine's own tensors, each [num_blocks, ...] and contiguous within a block, on
  // one device. Errors: InvalidArgument naming the tensor; ResourceExhausted as above.
  static absl::StatusOr<BlockStore> Over(std::vector<at::Tensor> tensors);

  // Host memory for `num_blocks` blocks like those of `like`, zeroed, one block after the other:
  // pinned and addressable by the device of `like`, or ordinary memory if that is the CPU.
  // Errors: InvalidArgument unless num_blocks >= 1; ResourceExhausted.
  static absl::StatusOr<BlockStore> Pinned(const BlockStore& like, int num_blocks);

  // What copies run on: the cache's device, also for a pinned store of it.
  at::Device device() const { return device_; }
  int num_blocks() const { return num_blocks_; }
  // Bytes that a copy of one block moves.
  int64_t bytes_per_block() const { return bytes_per_block_; }
  absl::Span<const BlockExtent> extents() const { return extents_; }
  // Whether it owns memory of the host, made by Pinned().
  bool is_pinned() const { return host_ != nullptr; }

  // Whether blocks may be copied between them.
  bool IsLike(const BlockStore& other) const;

  // What the kernel reads: the extents as the device addresses them. Valid as long as the store.
  CopyPieces pieces() const;

 private:
  BlockStore() = default;
  absl::Status ListPieces();

  at::Device device_ = at::kCPU;
  int num_blocks_ = 0;
  int64_t bytes_per_block_ = 0;
  std::vector<BlockExtent> extents_;
  std::vector<at::Tensor> kept_;        // tensors that the extents point into
  std::shared_ptr<MappedBuffer> host_;  // of a pinned store
  std::vector<CopyPiece> host_pieces_;  // empty on the CPU
  at::Tensor pieces_;                   // the same on the device, as bytes
  int64_t max_piece_bytes_ = 0;
  int word_bytes_ = 1;
};

}  // namespace reprise

#endif  // CACHE_BLOCK_STORE_H_
