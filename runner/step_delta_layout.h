// Where the arrays of a StepDelta lie in one ring slot, and how a batch is written into it.

#ifndef RUNNER_STEP_DELTA_LAYOUT_H_
#define RUNNER_STEP_DELTA_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "runner/scheduled_batch.h"
#include "runner/step_delta.h"

namespace reprise {

struct StepDeltaCapacity {
  int num_slots = 0;
  int64_t max_updates = 0;
  int max_rows = 0;
  int max_tokens = 0;
};

// Bytes of a delta, a multiple of 256.
int64_t StepDeltaBytes(const StepDeltaCapacity& capacity);

// Views of a delta that begins at `base`: the host's address to write it, the device's to hand it
// to refill. REQUIRES: base is aligned to 256 bytes.
StepDelta StepDeltaAt(const StepDeltaCapacity& capacity, std::byte* base);

// Writes `batch`, whose rows read `common_prefix_len` first keys together. REQUIRES: it fits the
// capacity of `delta`.
void WriteStepDelta(const ScheduledBatch& batch, int common_prefix_len, const StepDelta& delta);

}  // namespace reprise

#endif  // RUNNER_STEP_DELTA_LAYOUT_H_
