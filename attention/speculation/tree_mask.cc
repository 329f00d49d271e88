#include "reprise/attention/speculation/tree_mask.h"

#include <algorithm>

#include "reprise/attention/speculation/tree_check.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

void SetBit(absl::Span<uint8_t> mask, int64_t bit) {
  mask[bit / 8] |= static_cast<uint8_t>(1 << bit % 8);
}

// Sets bits [begin, begin + count).
void SetBits(absl::Span<uint8_t> mask, int64_t begin, int64_t count) {
  const int64_t end = begin + count;
  for (; begin < end && begin % 8 != 0; ++begin) SetBit(mask, begin);
  for (; begin + 8 <= end; begin += 8) mask[begin / 8] = 0xff;
  for (; begin < end; ++begin) SetBit(mask, begin);
}

}  // namespace

absl::Status WriteTreeMask(absl::Span<const int32_t> parents, int prefix_len,
                           absl::Span<uint8_t> mask) {
  REPRISE_RETURN_IF_ERROR(CheckParents(parents));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("prefix_len", prefix_len, 0));
  const auto num_nodes = static_cast<int64_t>(parents.size());
  const int64_t num_bytes = TreeMaskBytes(num_nodes, prefix_len);
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("mask.size", static_cast<int64_t>(mask.size()), num_bytes));
  std::fill_n(mask.begin(), num_bytes, 0);
  const int64_t seq_len = prefix_len + num_nodes;
  for (int64_t node = 0; node < num_nodes; ++node) {
    const int64_t row = node * seq_len;
    SetBits(mask, row, prefix_len);
    for (int64_t at = node; at >= 0; at = parents[at]) SetBit(mask, row + prefix_len + at);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> TreeDepths(absl::Span<const int32_t> parents) {
  REPRISE_RETURN_IF_ERROR(CheckParents(parents));
  std::vector<int32_t> depths(parents.size(), 0);
  for (size_t node = 0; node < parents.size(); ++node) {
    if (parents[node] >= 0) depths[node] = depths[parents[node]] + 1;
  }
  return depths;
}

}  // namespace reprise
