// What the host knows of the slots without asking the device: enough to refuse a batch that does
// not fit before anything is launched.
//
//   SlotMirror mirror({.num_slots = 8, .max_num_tokens = 512, .max_seq_len = 4096, ...});
//   REPRISE_ASSIGN_OR_RETURN(const StepDemand demand, mirror.Advance(batch));
//
// Lengths follow from the batches alone: a token sampled on the device changes no length that the
// host does not foresee.
//
// Thread safety: none; one owner. Cost: O(num_slots + batch), no allocation after construction.

#ifndef RUNNER_SLOT_MIRROR_H_
#define RUNNER_SLOT_MIRROR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graphs/graph_key.h"
#include "runner/sampling_features.h"
#include "runner/scheduled_batch.h"

namespace reprise {

struct SlotLimits {
  int num_slots = 0;       // rows of a step, too
  int max_num_tokens = 0;  // of a step
  int max_seq_len = 0;
  int max_blocks = 0;  // columns of the block table
  int block_size = 0;
  int num_blocks = 0;
  int vocab_size = 0;
};

// What a batch asks for.
struct StepDemand {
  StepShape shape;
  SamplingFeatures features = SamplingFeatures::kGreedy;  // that its rows' sampling needs
};

class SlotMirror {
 public:
  explicit SlotMirror(const SlotLimits& limits);

  // Applies the batch: leaves, joins, updates, rows. Errors, with nothing changed: InvalidArgument
  // naming the first part that does not fit, with what was expected and got.
  absl::StatusOr<StepDemand> Advance(const ScheduledBatch& batch);

  // Tokens of the slot whose keys are cached after the last batch; 0 if nobody is in it.
  int seq_len(SlotId slot) const { return slots_[slot.value()].seq_len; }

 private:
  struct Slot {
    bool joined = false;
    bool has_row = false;    // in the batch at hand
    bool has_token = false;  // the device knows a last token
    int seq_len = 0;
    int num_columns = 0;  // columns [0, num_columns) name blocks
    SamplingParams sampling;
  };

  absl::Status CheckSlot(const char* part, int slot) const;
  absl::Status ApplyJoin(const SlotJoin& join);
  absl::Status ApplyUpdate(const BlockTableUpdate& update);
  absl::Status ApplyRow(const ScheduledRow& row, StepDemand& demand);

  SlotLimits limits_;
  std::vector<Slot> slots_;
  std::vector<Slot> before_;  // to return to if the batch is refused
};

}  // namespace reprise

#endif  // RUNNER_SLOT_MIRROR_H_
