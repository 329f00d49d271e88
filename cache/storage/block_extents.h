// The memory ranges of a block, in any layout: the bytes that a copy or swap of the block moves.
//
//   std::vector<BlockExtent> extents = *BlockExtentsOf(cache.layers(), KvSides::kBoth);
//   // Byte i of extent e of block b is at extents[e].data + b * extents[e].block_stride + i.
//
// Ranges of all layers are merged if they touch in memory. A (K, V) pair of 32 layers in NHD has 64
// extents. Pages (cache/storage/kv_page_layout.h) have one extent if their tensors have no gaps.
// Layers within blocks have one extent per tensor. A tensor that is a slice of a wider tensor has
// one extent per row. Memory shared by several layers counts once. If groups overlap in memory, the
// larger group covers the smaller one.
//
// Two caches that KvCache::Create() allocates for the same layout have extents of the same sizes in
// the same order, regardless of their addresses and numbers of blocks (at least 2).
//
// No LibTorch. Thread safety: pure function. Cost: O(n log n) in the number of ranges.

#ifndef REPRISE_CACHE_STORAGE_BLOCK_EXTENTS_H_
#define REPRISE_CACHE_STORAGE_BLOCK_EXTENTS_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

struct BlockExtent {
  std::byte* data = nullptr;  // address in block 0
  int64_t block_stride = 0;   // bytes
  int64_t bytes = 0;          // contiguous bytes per block

  friend bool operator==(const BlockExtent&, const BlockExtent&) = default;
};
std::ostream& operator<<(std::ostream& out, const BlockExtent& extent);

// The extents of a store's blocks (cache/storage/block_store.h), in the form that kernels read.
struct BlockExtentList {
  const BlockExtent* extents = nullptr;       // [num_extents], on the device
  const BlockExtent* host_extents = nullptr;  // a host copy of the list, also with device addresses
  int num_extents = 0;
  int64_t max_bytes = 0;  // bytes of the largest extent
  int num_blocks = 0;
  // Addresses, strides and sizes are multiples of word_bytes, which is 16 or 1.
  int word_bytes = 1;
};

// The sides of a cache: keys, values or both. A latent counts as keys; it has no separate values.
enum class KvSides : int8_t { kBoth, kKeys, kValues };

// Returns the extents of a block over all layers. Errors: InvalidArgument if `layers` is empty, if
// layers differ in num_blocks, if a size is not positive, or if head_dim is not a multiple of
// dim_chunk.
absl::StatusOr<std::vector<BlockExtent>> BlockExtentsOf(absl::Span<const KvLayer> layers,
                                                        KvSides sides);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_BLOCK_EXTENTS_H_
