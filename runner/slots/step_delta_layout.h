// The layout of the arrays of a StepDelta in one ring slot, and the function that writes a batch
// into it.

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
  bool has_trees = false;  // there are host_parents
};

// Bytes of a delta, a multiple of 256.
int64_t StepDeltaBytes(const StepDeltaCapacity& capacity);

// Views of a delta that begins at `base`: pass the host's address to write it, the device's address
// for refill. REQUIRES: base is aligned to 256 bytes.
StepDelta StepDeltaAt(const StepDeltaCapacity& capacity, std::byte* base);

// Writes `batch`, whose rows read `common_prefix_len` first keys together; scores only if a row is
// scored (ScheduledRow::is_scored()). REQUIRES: it fits the `capacity`, with which `delta` was laid
// out.
void WriteStepDelta(const ScheduledBatch& batch, int common_prefix_len,
                    const StepDeltaCapacity& capacity, const StepDelta& delta);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_STEP_DELTA_LAYOUT_H_
