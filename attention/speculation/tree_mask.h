// Masks of trees of draft tokens with any number of nodes, as the packed bits of a custom mask
// (attention/paged_batch.h). Trees of up to 64 nodes have a cheaper form, the tail mask
// (attention/speculation/tree_batch.h), which tuned kernels serve as well.
//
// The tree of attention/speculation/token_tree.h behind 3 keys, bit l of query i for key l:
//
//   node 0   111 1 0 0 0 0      a row of 3 + 5 keys for each of the 5 queries: 40 bits, 5 bytes
//   node 1   111 1 1 0 0 0
//   node 2   111 1 0 1 0 0      std::vector<uint8_t> mask(TreeMaskBytes(5, 3));
//   node 3   111 1 1 0 1 0      WriteTreeMask({-1, 0, 0, 1, 2}, 3, absl::MakeSpan(mask));
//   node 4   111 1 0 1 0 1      // mask is 0f 1f 2f 5f af
//
// Such a row has query_len = the number of nodes and seq_len = prefix_len + the number of nodes.
// Attention takes its keys to be at the positions of their slots, not at their depths: windows,
// ALiBi and rotary embedding in the kernel would count slots. For a model whose rotary embedding is
// applied before the cache, TreeDepths() gives the positions of the queries, less prefix_len.
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

// Bytes of the mask of a row. REQUIRES: neither is negative.
constexpr int64_t TreeMaskBytes(int64_t num_nodes, int64_t prefix_len) {
  return (num_nodes * (prefix_len + num_nodes) + 7) / 8;
}

// Writes the mask of a row to the first TreeMaskBytes() of `mask`; its last bits are 0. Linear in
// its bytes and in the sum of the nodes' depths; no allocation.
// Errors: InvalidArgument, and nothing is written, for no nodes, for parents that form no tree
// (attention/speculation/tree_check.h), for a negative prefix_len, and for a mask that is too small.
absl::Status WriteTreeMask(absl::Span<const int32_t> parents, int prefix_len,
                           absl::Span<uint8_t> mask);

// The number of nodes above each node. Errors: as WriteTreeMask() for the tree.
absl::StatusOr<std::vector<int32_t>> TreeDepths(absl::Span<const int32_t> parents);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_SPECULATION_TREE_MASK_H_
