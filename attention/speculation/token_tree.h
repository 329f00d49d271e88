// Trees of draft tokens: which nodes a node sees, its position, and whether a tree is valid.
//
// Node i's parent is parents[i], an earlier node, or -1 if the node directly follows the cached
// tokens. So children follow their parents, in any other order (by level, by depth). In this tree
//
//   node      0  1  2  3  4           0 ─┬─ 1 ─── 3
//   parents  -1  0  0  1  2              └─ 2 ─── 4
//   mask      1 11 101 1011 10101     bit j: node j is on the path from the root to the node
//   depth     0  1  1  2  2           its bits less one
//
// node 3 sees the cache, 0, 1 and itself. Its position is prefix + 2, while its key is at prefix +
// 3 in the cache: positions encode depth, slots encode order. This is the tail of
// attention/paged_batch.h, with tail_len = number of nodes.
//
// Pure functions, constexpr, so that nvcc compiles them for the device.
// attention/speculation/tree_check.h reports what is wrong with an invalid tree.

#ifndef REPRISE_ATTENTION_SPECULATION_TOKEN_TREE_H_
#define REPRISE_ATTENTION_SPECULATION_TOKEN_TREE_H_

#include <cstdint>

#include "reprise/base/divisor.h"
#include "reprise/base/host_device.h"

namespace reprise {

// Bits of a mask.
inline constexpr int kMaxTreeNodes = 64;

REPRISE_HOST_DEVICE constexpr uint64_t NodeBit(int node) { return uint64_t{1} << node; }

REPRISE_HOST_DEVICE constexpr bool IsParent(int32_t parent, int node) {
  return parent >= -1 && parent < node;
}

// Mask of a node. REQUIRES: all nodes up to `node` have parents before them. O(depth).
REPRISE_HOST_DEVICE constexpr uint64_t PathMask(const int32_t* parents, int node) {
  uint64_t mask = 0;
  for (int32_t at = node; at >= 0; at = parents[at]) mask |= NodeBit(at);
  return mask;
}

// Number of nodes above a node; -1 if a parent on its path is not an earlier node. O(depth).
REPRISE_HOST_DEVICE constexpr int DepthOf(const int32_t* parents, int node) {
  int depth = 0;
  for (int32_t at = node; parents[at] >= 0; at = parents[at], ++depth) {
    if (parents[at] >= at) return -1;
  }
  return depth;
}

// The parents of the nodes of each row's tree. Without an array the rows are chains.
struct TreeParents {
  // Value of row_stride: the parents are an array [num_tokens], and a row's nodes are its tokens.
  static constexpr int64_t kByToken = -1;

  const int32_t* nodes = nullptr;
  // Elements between the first nodes of adjacent rows. 0: all rows have the same tree.
  int64_t row_stride = kByToken;

  constexpr bool has_trees() const { return nodes != nullptr; }
  // The parents of a row whose first token is `first_token` of the batch.
  constexpr const int32_t* row(int row_idx, int64_t first_token) const {
    return nodes + (row_stride == kByToken ? first_token : row_idx * row_stride);
  }
};

// Position of a node. REQUIRES: a mask with its own bit.
REPRISE_HOST_DEVICE constexpr int64_t NodePosition(int64_t prefix, uint64_t mask) {
  return prefix + NumBits(mask) - 1;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TOKEN_TREE_H_
