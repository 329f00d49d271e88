#include "reprise/runner/parts/block_mover.h"

#include "reprise/base/status_macros.h"
#include "reprise/cache/ops/copy_blocks.h"

namespace reprise {

absl::Status BlockMover::AllocateHostBlocks(int num_blocks) {
  REPRISE_ASSIGN_OR_RETURN(host_blocks_, BlockStore::Pinned(memory_.block_store(), num_blocks));
  return absl::OkStatus();
}

absl::Status BlockMover::Apply(const ScheduledBatch& batch, const StepPlan&) {
  const BlockStore& cache = memory_.block_store();
  if (!batch.swap_outs.empty()) {
    REPRISE_RETURN_IF_ERROR(CopyBlocks(cache, *host_blocks_, batch.swap_outs));
  }
  if (!batch.swap_ins.empty()) {
    REPRISE_RETURN_IF_ERROR(CopyBlocks(*host_blocks_, cache, batch.swap_ins));
  }
  return batch.copies.empty() ? absl::OkStatus() : CopyBlocks(cache, cache, batch.copies);
}

}  // namespace reprise
