// Where the bytes of a block stand: what is moved when a block is copied or swapped, whatever the
// layout.
//
//   std::vector<BlockExtent> extents = *BlockExtentsOf(cache.layers(), KvSides::kBoth);
//   // Byte i of extent e of block b stands at extents[e].data + b * extents[e].block_stride + i.
//
// The pieces of all layers are joined where they touch in memory. A (K, V) pair of 32 layers in NHD
// has 64 extents; pages (cache/kv_page_layout.h) and layers within blocks have one; a tensor that
// is a slice of something wider has one a row. Layers that share memory count once, and groups that
// lie over each other are covered by the larger.
//
// Two caches of one layout have extents of the same sizes in the same order, whatever their
// addresses and numbers of blocks (from 2 on).
//
// No LibTorch. Thread safety: pure function. Cost: some microseconds a layer; n log n in pieces.

#ifndef CACHE_BLOCK_EXTENTS_H_
#define CACHE_BLOCK_EXTENTS_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/kv_layer.h"

namespace reprise {

struct BlockExtent {
  std::byte* data = nullptr;  // of block 0
  int64_t block_stride = 0;   // bytes
  int64_t bytes = 0;          // contiguous, of each block

  friend bool operator==(const BlockExtent&, const BlockExtent&) = default;
};
std::ostream& operator<<(std::ostream& out, const BlockExtent& extent);

// What of a cache: all, or K and V apart. A latent is K; it has no V of its own.
enum class KvSides : int8_t { kBoth, kKeys, kValues };

// Errors: InvalidArgument if there is no layer, if layers differ in num_blocks, if a size is not
// positive, or if a head does not divide into its chunks.
absl::StatusOr<std::vector<BlockExtent>> BlockExtentsOf(absl::Span<const KvLayer> layers,
                                                        KvSides sides);

}  // namespace reprise

#endif  // CACHE_BLOCK_EXTENTS_H_
