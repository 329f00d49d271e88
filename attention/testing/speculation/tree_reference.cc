#include "reprise/attention/testing/speculation/tree_reference.h"

#include <cstdint>
#include <vector>

namespace reprise {
namespace {

// Returns the path from `node` to the root. Returns an empty path if a parent does not precede its
// child or is less than -1.
std::vector<int> PathUp(const std::vector<int32_t>& parents, int node) {
  std::vector<int> path;
  while (node >= 0) {
    path.push_back(node);
    const int32_t parent = parents[node];
    if (parent >= node || parent < -1) return {};
    node = parent;
  }
  return path;
}

void ClearRow(const BatchArrays& arrays, int r, RowFault fault) {
  arrays.seq_lens[r] = 0;
  arrays.table_row[r] = 0;
  arrays.tail_len[r] = 0;
  if (arrays.logits_indices != nullptr) arrays.logits_indices[r] = 0;
  if (arrays.context_lens != nullptr) arrays.context_lens[r] = 0;
  if (arrays.row_faults != nullptr) arrays.row_faults[r] = static_cast<int32_t>(fault);
}

void ClearToken(const TreeTokensArgs& args, int64_t token) {
  if (args.arrays.token_ids != nullptr) args.arrays.token_ids[token] = 0;
  args.arrays.positions[token] = 0;
  args.arrays.tail_mask[token] = 0;
  for (int group = 0; group < args.num_groups; ++group) {
    args.arrays.slot_mapping[group * args.arrays.group_stride + token] = -1;
  }
}

void WriteRowByDefinition(const TreeTokensArgs& args, int r) {
  const BatchArrays& arrays = args.arrays;
  const bool has_drafts = args.first_verified == nullptr || args.first_verified[r] >= 0;
  if (arrays.seq_lens[r] == 0 || !has_drafts) {
    arrays.tail_len[r] = 0;
    return;
  }
  const int64_t first = arrays.query_start_loc[r];
  const int64_t count = arrays.query_start_loc[r + 1] - first;
  const int64_t num_keys = arrays.seq_lens[r];
  const bool is_within = first >= 0 && count >= 1 && first + count <= args.num_tokens &&
                         count <= args.max_nodes && num_keys >= count;
  const bool has_logits =
      args.sample_offset == nullptr || args.first_verified[r] + count - 1 <= args.num_logits;
  if (!is_within || !has_logits) return ClearRow(arrays, r, RowFault::kLength);
  std::vector<int32_t> parents;
  for (int64_t node = 0; node < count; ++node) {
    const int64_t stride = args.parents.row_stride;
    parents.push_back(args.parents.nodes[stride == -1 ? first + node : r * stride + node]);
  }
  bool is_tree = true;
  for (int node = 0; node < count; ++node) is_tree = is_tree && !PathUp(parents, node).empty();
  if (!is_tree) {
    ClearRow(arrays, r, RowFault::kTree);
    for (int64_t node = 0; node < count; ++node) ClearToken(args, first + node);
    return;
  }
  arrays.tail_len[r] = static_cast<int32_t>(count);
  for (int node = 0; node < count; ++node) {
    const std::vector<int> path = PathUp(parents, node);
    const int depth = static_cast<int>(path.size()) - 1;
    const auto position = static_cast<int32_t>(num_keys - count + depth);
    uint64_t mask = 0;
    for (int at : path) mask |= uint64_t{1} << at;
    arrays.tail_mask[first + node] = mask;
    arrays.positions[first + node] = position;
    if (args.sample_offset != nullptr) {
      args.sample_offset[node == count - 1 ? r : args.first_verified[r] + node] = depth;
    }
    for (int dim = 0;
         args.model_positions.positions != nullptr && dim < args.model_positions.num_dims; ++dim) {
      args.model_positions.positions[dim * args.model_positions.stride + first + node] =
          static_cast<int32_t>(int64_t{position} + args.model_positions.delta[arrays.table_row[r]]);
    }
  }
}

}  // namespace

void TreeTokensByDefinition(const TreeTokensArgs& args) {
  for (int r = 0; r < args.num_rows; ++r) WriteRowByDefinition(args, r);
}

}  // namespace reprise
