// A copy of one block to another: an element of the plans for copy-on-write and swapping that
// cache/ops/copy_blocks.h executes.
//
// `src` is a block of the source cache, and `dst` a block of the destination cache, which may be
// the same cache. A list of copies behaves as if the copies ran one after the other, in order. A
// source may occur any number of times.
//
//   const BlockCopy copies[] = {{.src = 5, .dst = 9}, {.src = 5, .dst = 12}};
//
// Plain data with the same layout on host and device. No LibTorch.

#ifndef REPRISE_CACHE_BLOCK_COPY_H_
#define REPRISE_CACHE_BLOCK_COPY_H_

#include <cstdint>

namespace reprise {

struct BlockCopy {
  int32_t src = 0;
  int32_t dst = 0;

  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};
static_assert(sizeof(BlockCopy) == 8, "a list of copies is an int32 tensor [n, 2]");

}  // namespace reprise

#endif  // REPRISE_CACHE_BLOCK_COPY_H_
