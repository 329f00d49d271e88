// Where the bytes of a block are: what is moved when a block is copied or swapped, whatever the
// layout.
//
//   std::vector<BlockExtent> extents = *BlockExtentsOf(cache.layers(), KvSides::kBoth);
//   // Byte i of extent e of block b is at extents[e].data + b * extents[e].block_stride + i.
//
// The pieces of all layers are joined where they touch in memory. A (K, V) pair of 32 layers in NHD
// has 64 extents; pages (cache/storage/kv_page_layout.h) and layers within blocks have one; a
// tensor that is a slice of something wider has one a row. Layers that share memory count once, and
// of groups that overlap in memory the larger covers the smaller.
//
// Two caches of one layout have extents of the same sizes in the same order, whatever their
// addresses and numbers of blocks (from 2 on).
//
// No LibTorch. Thread safety: pure function. Cost: some microseconds a layer; n log n in pieces.

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
  std::byte* data = nullptr;  // of block 0
  int64_t block_stride = 0;   // bytes
  int64_t bytes = 0;          // contiguous, of each block

  friend bool operator==(const BlockExtent&, const BlockExtent&) = default;
};
std::ostream& operator<<(std::ostream& out, const BlockExtent& extent);

// The extents of a store's blocks (cache/storage/block_store.h), as a kernel addresses them.
struct BlockExtentList {
  const BlockExtent* extents = nullptr;       // [num_extents], on the device
  const BlockExtent* host_extents = nullptr;  // the same list (of device addresses), on the host
  int num_extents = 0;
  int64_t max_bytes = 0;  // of the largest extent
  int num_blocks = 0;
  // Addresses, strides and sizes are multiples of it: 16 or 1.
  int word_bytes = 1;
};

// The sides of a cache: both, or one of them. A latent is K; it has no V of its own.
enum class KvSides : int8_t { kBoth, kKeys, kValues };

// Errors: InvalidArgument if `layers` is empty, if layers differ in num_blocks, if a size is not
// positive, or if a head does not divide into its chunks.
absl::StatusOr<std::vector<BlockExtent>> BlockExtentsOf(absl::Span<const KvLayer> layers,
                                                        KvSides sides);

}  // namespace reprise

#endif  // REPRISE_CACHE_STORAGE_BLOCK_EXTENTS_H_
