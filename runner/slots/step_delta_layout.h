// The layout of a StepDelta's arrays in one ring slot, and the function that writes a batch into
// them.

#ifndef REPRISE_RUNNER_SLOTS_STEP_DELTA_LAYOUT_H_
#define REPRISE_RUNNER_SLOTS_STEP_DELTA_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/step_delta.h"

namespace reprise {

struct StepDeltaCapacity {
  int num_slots = 0;
  int64_t max_updates = 0;
  int max_rows = 0;
  int max_tokens = 0;
  int num_position_dims = 1;
  bool has_trees = false;  // the delta has host_parents
};

// Returns the size of a delta in bytes, a multiple of 256.
int64_t StepDeltaBytes(const StepDeltaCapacity& capacity);

// Returns the views of a delta at `base`. Pass the host address to write the delta, and the device
// address for refill. REQUIRES: base is aligned to 256 bytes.
StepDelta StepDeltaAt(const StepDeltaCapacity& capacity, std::byte* base);

// Writes `batch`, whose rows share `common_prefix_len` leading keys. Writes scores only if a row
// has earlier logits or a known next token. REQUIRES: the batch fits into `capacity`, which must be
// the capacity that `delta` was laid out with.
void WriteStepDelta(const ScheduledBatch& batch, int common_prefix_len,
                    const StepDeltaCapacity& capacity, const StepDelta& delta);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_STEP_DELTA_LAYOUT_H_
