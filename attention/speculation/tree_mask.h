// Writes masks of trees of draft tokens with any number of nodes, as the packed bits of a custom
// mask (attention/paged_batch.h). For trees of up to 64 nodes, the tail mask
// (attention/speculation/tree_batch.h) is cheaper and is supported by the tuned kernels.
//
// Example: the tree of attention/speculation/token_tree.h after 3 keys. Bit l of query i is for key
// l:
//
//   node 0   111 1 0 0 0 0      5 queries with 3 + 5 keys each: 40 bits, 5 bytes
//   node 1   111 1 1 0 0 0
//   node 2   111 1 0 1 0 0      std::vector<uint8_t> mask(TreeMaskBytes(5, 3));
//   node 3   111 1 1 0 1 0      WriteTreeMask({-1, 0, 0, 1, 2}, 3, absl::MakeSpan(mask));
//   node 4   111 1 0 1 0 1      // mask is 0f 1f 2f 5f af
//
// A row with such a mask has query_len = number of nodes and seq_len = prefix_len + number of
// nodes. In attention, the position of a key is its slot's index in the sequence, not prefix_len
// plus its depth: windows, ALiBi and rotary embedding in the kernel would count slots. If the model
// applies rotary embedding before the cache, the position of a query is prefix_len plus its
// TreeDepths().
//
// Thread safety: pure functions. No LibTorch.

#ifndef REPRISE_ATTENTION_SPECULATION_TREE_MASK_H_
#define REPRISE_ATTENTION_SPECULATION_TREE_MASK_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

// Returns the size of a row's mask in bytes. REQUIRES: both arguments are at least 0.
constexpr int64_t TreeMaskBytes(int64_t num_nodes, int64_t prefix_len) {
  return (num_nodes * (prefix_len + num_nodes) + 7) / 8;
}

// Writes the mask of a row to the first TreeMaskBytes() bytes of `mask`. Unused bits of the last
// byte are 0.
// Errors: InvalidArgument if there are no nodes, if the parents do not form a tree
// (attention/speculation/tree_check.h), if prefix_len is negative, or if `mask` is too small. On
// error nothing is written. Cost: linear in bytes and in the sum of the nodes' depths. Does not
// allocate.
absl::Status WriteTreeMask(absl::Span<const int32_t> parents, int prefix_len,
                           absl::Span<uint8_t> mask);

// Returns the number of ancestors of each node. Errors: those of WriteTreeMask() for the parents.
absl::StatusOr<std::vector<int32_t>> TreeDepths(absl::Span<const int32_t> parents);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_MASK_H_
