// Swaps the batch's blocks between the cache and host memory, and copies blocks within the cache.
// This is the first work of a step, because the step may read blocks that were swapped in and
// overwrite blocks that were swapped out.
//
// Thread safety: none; one owner.

#ifndef REPRISE_RUNNER_PARTS_BLOCK_MOVER_H_
#define REPRISE_RUNNER_PARTS_BLOCK_MOVER_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "reprise/cache/storage/block_store.h"
#include "reprise/runner/runner_memory.h"
#include "reprise/runner/step_part.h"

namespace reprise {

class BlockMover final : public StepPart, private BatchInput {
 public:
  // `memory` must outlive this object.
  explicit BlockMover(const RunnerMemory* memory) : memory_(*memory) {}

  // Allocates host memory for `num_blocks` blocks, including host block 0. Errors: as
  // BlockStore::Pinned().
  absl::Status AllocateHostBlocks(int num_blocks);

  // The blocks are in the cache or on the host: this part holds no device memory.
  int64_t bytes() const override { return 0; }
  void AddTo(Fingerprint&) const override {}
  BatchInput* slot_input() override { return this; }

 private:
  absl::Status Apply(const ScheduledBatch& batch, const StepPlan& plan) override;

  const RunnerMemory& memory_;
  std::optional<BlockStore> host_blocks_;  // nullopt: no swaps
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_PARTS_BLOCK_MOVER_H_
