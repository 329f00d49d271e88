// Trees of draft tokens: the mask, the depth and the position of a node.
//
// The parent of node i is parents[i], an earlier node, or -1 if node i directly follows the cached
// tokens. Children therefore come after their parents; otherwise the order is free (by level, by
// depth). In this tree
//
//   node      0  1  2  3  4           0 ─┬─ 1 ─── 3
//   parents  -1  0  0  1  2              └─ 2 ─── 4
//   mask      1 11 101 1011 10101     bit j: node j is on the path from the root to the node
//   depth     0  1  1  2  2           number of bits in the mask, minus 1
//
// node 3 attends to the cache, to nodes 0 and 1, and to itself. Its position is prefix + 2, but its
// key is at index prefix + 3 in the cache: positions encode depth, slots encode order. The nodes
// are the tail of attention/paged_batch.h, with tail_len = number of nodes.
//
// All functions are pure and constexpr, so that nvcc compiles them for the device.
// attention/speculation/tree_check.h describes the error in an invalid tree.

#ifndef REPRISE_ATTENTION_SPECULATION_TOKEN_TREE_H_
#define REPRISE_ATTENTION_SPECULATION_TOKEN_TREE_H_

#include <cstdint>

#include "reprise/base/divisor.h"
#include "reprise/base/host_device.h"

namespace reprise {

// Number of bits in a mask.
inline constexpr int kMaxTreeNodes = 64;

REPRISE_HOST_DEVICE constexpr uint64_t NodeBit(int node) { return uint64_t{1} << node; }

REPRISE_HOST_DEVICE constexpr bool IsParent(int32_t parent, int node) {
  return parent >= -1 && parent < node;
}

// Returns the mask of a node. REQUIRES: the parents of all nodes up to `node` are earlier nodes.
// Cost: O(depth).
REPRISE_HOST_DEVICE constexpr uint64_t PathMask(const int32_t* parents, int node) {
  uint64_t mask = 0;
  for (int32_t at = node; at >= 0; at = parents[at]) mask |= NodeBit(at);
  return mask;
}

// Returns the number of ancestors of a node, or -1 if a parent on its path is not an earlier node.
// Cost: O(depth).
REPRISE_HOST_DEVICE constexpr int DepthOf(const int32_t* parents, int node) {
  int depth = 0;
  for (int32_t at = node; parents[at] >= 0; at = parents[at], ++depth) {
    if (parents[at] >= at) return -1;
  }
  return depth;
}

// The parents of the nodes of each row's tree. If `nodes` is null, the rows are chains.
struct TreeParents {
  // Value of row_stride for parents [num_tokens], where a row's nodes are the row's tokens.
  static constexpr int64_t kByToken = -1;

  const int32_t* nodes = nullptr;
  // Elements between the first nodes of adjacent rows. 0: all rows have the same tree.
  int64_t row_stride = kByToken;

  constexpr bool has_trees() const { return nodes != nullptr; }
  // Returns the parents of a row. `first_token` is the index of its first token in the batch.
  constexpr const int32_t* row(int row_idx, int64_t first_token) const {
    return nodes + (row_stride == kByToken ? first_token : row_idx * row_stride);
  }
};

// Returns the position of a node from its mask. REQUIRES: the mask includes the node's bit.
REPRISE_HOST_DEVICE constexpr int64_t NodePosition(int64_t prefix, uint64_t mask) {
  return prefix + NumBits(mask) - 1;
}

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TOKEN_TREE_H_
