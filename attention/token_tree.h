// Trees of draft tokens: which nodes a node sees, where it stands, and whether a tree is one.
//
// Node i's parent is parents[i], an earlier node, or -1: then it stands right behind what the cache
// holds. So children follow their parents, in any order otherwise (by level, by depth). Of
//
//   node      0  1  2  3  4           0 ─┬─ 1 ─── 3
//   parents  -1  0  0  1  2              └─ 2 ─── 4
//   mask      1 11 101 1011 10101     bit j: node j is on the path from the root to the node
//   depth     0  1  1  2  2           its bits less one
//
// node 3 sees the cache, 0, 1 and itself, and stands at prefix + 2, while its key stands in the
// cache at prefix + 3: positions carry depth, slots carry order. That is the tail of
// attention/paged_batch.h, with tail_len = number of nodes.
//
// Pure functions, constexpr, so that nvcc compiles them for the device. attention/tree_check.h says
// what is wrong with a tree that is none.

#ifndef ATTENTION_TOKEN_TREE_H_
#define ATTENTION_TOKEN_TREE_H_

#include <bit>
#include <cstdint>

#include "attention/host_device.h"

namespace reprise {

// Bits of a mask.
inline constexpr int kMaxTreeNodes = 64;

REPRISE_HOST_DEVICE constexpr uint64_t NodeBit(int node) { return uint64_t{1} << node; }

REPRISE_HOST_DEVICE constexpr int NumBits(uint64_t mask) {
#if defined(__CUDA_ARCH__)
  return __popcll(mask);
#else
  return std::popcount(mask);
#endif
}

REPRISE_HOST_DEVICE constexpr bool IsParent(int32_t parent, int node) {
  return parent >= -1 && parent < node;
}

// Mask of a node. REQUIRES: all nodes up to `node` have parents before them. O(depth).
REPRISE_HOST_DEVICE constexpr uint64_t PathMask(const int32_t* parents, int node) {
  uint64_t mask = 0;
  for (int32_t at = node; at >= 0; at = parents[at]) mask |= NodeBit(at);
  return mask;
}

// Where a node stands. REQUIRES: a mask with its own bit.
REPRISE_HOST_DEVICE constexpr int64_t NodePosition(int64_t prefix, uint64_t mask) {
  return prefix + NumBits(mask) - 1;
}

}  // namespace reprise

#endif  // ATTENTION_TOKEN_TREE_H_
