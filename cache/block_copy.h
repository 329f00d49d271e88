// One block to copy to another: the element of plans (copy-on-write, swapping) that
// cache/ops/copy_blocks.h runs.
//
// Block ids of a source cache and of a destination cache, which may be the same one. A list of
// copies runs in its order, one after the other; a source may occur many times (one to many).
//
//   const BlockCopy copies[] = {{.src = 5, .dst = 9}, {.src = 5, .dst = 12}};
//
// Plain data, the same on host and device, without LibTorch.

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
