// A host copy of the slot state that is maintained without reading the device. Detects a batch that
// does not fit before anything is launched.
//
//   SlotMirror mirror(runner.shape());
//   REPRISE_ASSIGN_OR_RETURN(const StepDemand demand, mirror.Advance(batch));
//
// Lengths follow from the batches alone: a token sampled on the device does not change a length
// unpredictably. With drafts, the mirror has a lower and an upper bound until Settle() states how
// many drafts were accepted. For block tables, the mirror stores which columns of each group are
// filled. A step attends through the cache, so a row needs blocks for all keys that it writes and
// for all keys that its first query reads. Earlier blocks may be null (cache/kv_group.h).
//
// Thread safety: none; one owner. Cost: O(num_slots * groups + batch). Does not allocate after
// construction.

#ifndef REPRISE_RUNNER_SLOTS_SLOT_MIRROR_H_
#define REPRISE_RUNNER_SLOTS_SLOT_MIRROR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/cache/kv_group.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/runner_shape.h"
#include "reprise/runner/sampling/sampling_params.h"
#include "reprise/runner/slots/scheduled_batch.h"

namespace reprise {

// The requirements of a batch.
struct StepDemand {
  StepShape shape;
  SamplingFeatures features = SamplingFeatures::kGreedy;  // required by the sampling of its rows
  int num_encoder_tokens = 0;
};

// A row of a step whose drafts are not verified yet.
struct UnsettledRow {
  int row = 0;
  SlotId slot = {};
  int64_t sequence = 0;  // number of the join that the sequence entered with
  int num_drafts = 0;
};

class SlotMirror {
 public:
  explicit SlotMirror(const RunnerShape& shape);

  // Applies the batch: leaves, joins, updates, swaps, copies, encodes, rows. Errors:
  // InvalidArgument naming the first part that does not fit, with the expected and the given value.
  // Changes nothing on failure.
  absl::StatusOr<StepDemand> Advance(const ScheduledBatch& batch);

  // Returns the rows with drafts of the last batch. Valid until the next Advance().
  absl::Span<const UnsettledRow> unsettled_rows() const { return unsettled_rows_; }

  // Sets the number of new tokens of the row, in [1, 1 + num_drafts]. Has no effect if its sequence
  // has left.
  void Settle(const UnsettledRow& row, int num_new);

  // Lower and upper bound of the number of the slot's tokens whose keys are cached after the last
  // batch; 0 if the slot is free. The bounds differ until drafts are settled.
  int seq_len(SlotId slot) const { return state_.slots[slot.value()].min_seq_len(); }
  int max_seq_len(SlotId slot) const { return state_.slots[slot.value()].seq_len; }

 private:
  struct Slot {
    bool joined = false;
    bool has_row = false;    // in the current batch
    bool has_token = false;  // the slot's last row leaves a token on the device
    int seq_len = 0;         // upper bound
    int prompt_len = 0;      // SlotJoin::prompt_len
    int num_unsettled = 0;   // drafts in seq_len that may be rejected
    int64_t sequence = 0;    // number of the join
    int num_encoder_tokens = 0;
    int position_delta = 0;
    bool is_encoded = false;  // the encoder's keys are cached, or a launched encode writes them
    SamplingParams sampling;

    int min_seq_len() const { return seq_len - num_unsettled; }
  };
  // The filled columns [begin, end) of a slot's row in a group's block table.
  struct Columns {
    int begin = 0;
    int end = 0;
  };
  struct State {
    std::vector<Slot> slots;
    std::vector<Columns> columns;  // by slot, then group
    int64_t num_joins = 0;
  };

  absl::Status CheckSlot(const char* part, int slot) const;
  absl::Status ApplyJoin(const SlotJoin& join);
  absl::Status ApplyUpdate(const BlockTableUpdate& update);
  // Checks copies from blocks [1, num_src) to blocks [1, num_dst).
  absl::Status CheckCopies(const char* part, absl::Span<const BlockCopy> copies, int num_src,
                           int num_dst) const;
  absl::Status ApplyEncode(const ScheduledEncode& encode, StepDemand& demand);
  absl::Status ApplyRow(const ScheduledRow& row, StepDemand& demand);
  absl::Status CheckDrafts(const ScheduledRow& row) const;
  absl::Status CheckParents(const ScheduledRow& row) const;
  // Applies the row's logits before its last token.
  absl::Status ApplyEarlierLogits(const ScheduledRow& row, StepDemand& demand) const;
  absl::Status CheckNextToken(const ScheduledRow& row) const;
  absl::Status CheckPositions(const ScheduledRow& row) const;
  absl::Status CheckEmbeddings(const ScheduledBatch& batch) const;
  absl::Status CheckTokens(const char* part, int slot, absl::Span<const int32_t> tokens) const;
  // Checks that the row has blocks for all keys that it reads and writes, up to `seq_len`.
  absl::Status CheckRowBlocks(int slot, int64_t seq_len) const;
  absl::Status CheckEncoderBlocks(const char* part, int slot) const;
  int num_groups() const { return static_cast<int>(shape_.groups.size()); }
  Columns& columns(int slot, int group) { return state_.columns[slot * num_groups() + group]; }
  const Columns& columns(int slot, int group) const {
    return state_.columns[slot * num_groups() + group];
  }

  RunnerShape shape_;
  State state_;
  State before_;  // state to restore if the batch is rejected
  std::vector<UnsettledRow> unsettled_rows_;
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_SLOT_MIRROR_H_
