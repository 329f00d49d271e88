// The host's copy of the slot state, kept without reading the device: enough to refuse a batch that
// does not fit before anything is launched.
//
//   SlotMirror mirror({.num_slots = 8, .max_num_tokens = 512, .max_seq_len = 4096, ...});
//   REPRISE_ASSIGN_OR_RETURN(const StepDemand demand, mirror.Advance(batch));
//
// Lengths follow from the batches alone: a token sampled on the device changes no length that the
// host cannot predict. With drafts they are known from above and from below, until Settle() says how
// many were accepted. For block tables, the mirror stores which columns of each group are filled.
// A step attends through the cache, so a row needs blocks for all keys that it writes and for all
// keys that its first query sees; blocks before that may be null (cache/kv_group.h).
//
// Thread safety: none; one owner. Cost: O(num_slots * groups + batch), no allocation after
// construction.

#ifndef RUNNER_SLOTS_SLOT_MIRROR_H_
#define RUNNER_SLOTS_SLOT_MIRROR_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache/kv_group.h"
#include "graphs/graph_key.h"
#include "runner/sampling/sampling_params.h"
#include "runner/slots/embedding_rows.h"
#include "runner/slots/scheduled_batch.h"

namespace reprise {

struct SlotLimits {
  int num_slots = 0;       // rows of a step, too
  int max_num_tokens = 0;  // of a step
  int max_seq_len = 0;
  int max_blocks = 0;  // columns of the block table
  int block_size = 0;
  int num_blocks = 0;
  int num_swap_blocks = 0;  // on the host, host block 0 included; 0: none
  int vocab_size = 0;
  int max_earlier_logits = 0;  // of a step (RowLogits::kAll, drafts)
  int max_drafts = 0;          // of a row
  bool has_drafter = false;    // rows may leave their drafts to it
  bool has_trees = false;      // drafts may be trees
  std::vector<KvGroupSpec> groups = {{}};
  int max_encoder_tokens = 0;       // of a sequence; 0: the model has no encoder
  int max_encoder_step_tokens = 0;  // of a step
  EmbeddingFormat embeddings = {};  // what the model takes in place of token ids
  int num_position_dims = 1;
  int max_position = 0;  // beyond all positions; read only with several dimensions

  // The most updates of a batch: every entry of every table.
  int64_t max_updates() const {
    return static_cast<int64_t>(groups.size()) * num_slots * max_blocks;
  }
};

// What a batch requires.
struct StepDemand {
  StepShape shape;
  SamplingFeatures features = SamplingFeatures::kGreedy;  // that its rows' sampling needs
  int num_encoder_tokens = 0;
  bool has_scored_rows = false;  // ScheduledRow::is_scored()
};

// A row of a step whose drafts are not verified yet.
struct UnsettledRow {
  int row = 0;
  SlotId slot = {};
  int64_t sequence = 0;  // which of the slot's
  int num_drafts = 0;
};

class SlotMirror {
 public:
  explicit SlotMirror(const SlotLimits& limits);

  // Applies the batch: leaves, joins, updates, swaps, copies, encodes, rows. Errors, with nothing
  // changed: InvalidArgument naming the first part that does not fit, with what was expected and
  // got.
  absl::StatusOr<StepDemand> Advance(const ScheduledBatch& batch);

  // The rows with drafts of the last batch. Valid until the next one.
  absl::Span<const UnsettledRow> unsettled_rows() const { return unsettled_rows_; }

  // The row has `num_new` new tokens, 1 to 1 + num_drafts. Nothing if its sequence has left.
  void Settle(const UnsettledRow& row, int num_new);

  // Tokens of the slot whose keys are cached after the last batch, at least and at most; 0 if the
  // slot is free. They differ while drafts are not settled.
  int seq_len(SlotId slot) const { return state_.slots[slot.value()].min_seq_len(); }
  int max_seq_len(SlotId slot) const { return state_.slots[slot.value()].seq_len; }

 private:
  struct Slot {
    bool joined = false;
    bool has_row = false;    // in the current batch
    bool has_token = false;  // the device knows a last token
    int seq_len = 0;         // at most
    int num_unsettled = 0;   // drafts among them that may be rejected
    int64_t sequence = 0;    // counts joins
    int num_encoder_tokens = 0;
    int position_delta = 0;
    bool is_encoded = false;  // the encoder's keys are in the cache, or will be after the encode
    SamplingParams sampling;

    int min_seq_len() const { return seq_len - num_unsettled; }
  };
  // Columns [begin, end) of a slot's row in a group's table name blocks.
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
  // Copies between blocks [1, num_src) and [1, num_dst).
  absl::Status CheckCopies(const char* part, absl::Span<const BlockCopy> copies, int num_src,
                           int num_dst) const;
  absl::Status ApplyEncode(const ScheduledEncode& encode, StepDemand& demand);
  absl::Status ApplyRow(const ScheduledRow& row, StepDemand& demand);
  absl::Status CheckDrafts(const ScheduledRow& row) const;
  absl::Status CheckParents(const ScheduledRow& row) const;
  // The row's logits of tokens before its last.
  absl::Status ApplyEarlierLogits(const ScheduledRow& row, StepDemand& demand) const;
  // The row's logits beyond its last and the token that follows it.
  absl::Status ApplyScores(const ScheduledRow& row, StepDemand& demand) const;
  absl::Status CheckPositions(const ScheduledRow& row) const;
  absl::Status CheckEmbeddings(const ScheduledBatch& batch) const;
  absl::Status CheckTokens(const char* part, int slot, absl::Span<const int32_t> tokens) const;
  // Whether the row has blocks for the keys that it reads and writes, up to `seq_len`.
  absl::Status CheckRowBlocks(int slot, int64_t seq_len) const;
  absl::Status CheckEncoderBlocks(const char* part, int slot) const;
  int num_groups() const { return static_cast<int>(limits_.groups.size()); }
  Columns& columns(int slot, int group) { return state_.columns[slot * num_groups() + group]; }
  const Columns& columns(int slot, int group) const {
    return state_.columns[slot * num_groups() + group];
  }

  SlotLimits limits_;
  State state_;
  State before_;  // to return to if the batch is refused
  std::vector<UnsettledRow> unsettled_rows_;
};

}  // namespace reprise

#endif  // RUNNER_SLOTS_SLOT_MIRROR_H_
