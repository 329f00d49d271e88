#include "reprise/runner/ranks/sharded_logits.h"

#include <utility>

#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

ShardedLogits::ShardedLogits(int64_t vocab_size, Collectives* collectives)
    : vocab_size_(vocab_size),
      collectives_(collectives),
      share_(AlignedShareOf(vocab_size, RanksOf(collectives))),
      largest_share_(LargestAlignedShare(vocab_size, RanksOf(collectives).world)) {}

at::Tensor ShardedLogits::PartsIn(const at::Tensor& memory, int64_t num_rows) const {
  return memory.narrow(0, 0, PartsSize(num_rows)).view({ranks().world, num_rows, largest_share_});
}

absl::Status ShardedLogits::Gather(at::Tensor parts, const at::Tensor& logits) const {
  const int world = ranks().world;
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("logits", logits, {parts.size(1), vocab_size_}));
  if (parts.size(1) == 0) return absl::OkStatus();
  if (world > 1) REPRISE_RETURN_IF_ERROR(collectives_->AllGather(parts[ranks().rank], parts));
  if (largest_share_ * world == vocab_size_) {
    logits.unflatten(1, {world, largest_share_}).copy_(parts.transpose(0, 1));
    return absl::OkStatus();
  }
  for (int rank = 0; rank < world; ++rank) {
    const Share share = AlignedShareOf(vocab_size_, {.rank = rank, .world = world});
    logits.narrow(1, share.begin, share.size).copy_(parts[rank].narrow(1, 0, share.size));
  }
  return absl::OkStatus();
}

}  // namespace reprise
