#include "reprise/engine/speculation/drafted_blocks.h"

#include <algorithm>

#include "glog/logging.h"

namespace reprise {

void DraftedBlocks::Set(absl::Span<const BlockId> blocks, const TokenSpan& range, int num_seen) {
  if (range.first >= range.end) return;
  const int last = (range.end - 1) / block_size_;
  CHECK_LT(last, static_cast<int>(blocks.size()));
  for (int column = range.first / block_size_; column <= last; ++column) {
    num_seen_[blocks[column].value()] = std::clamp(num_seen - column * block_size_, 0, block_size_);
  }
}

int DraftedBlocks::NumSeen(absl::Span<const BlockId> blocks, int num_tokens) const {
  for (int first = 0; first < num_tokens; first += block_size_) {
    const int num_seen = num_seen_[blocks[first / block_size_].value()];
    if (num_seen < block_size_) return std::min(first + num_seen, num_tokens);
  }
  return num_tokens;
}

}  // namespace reprise
