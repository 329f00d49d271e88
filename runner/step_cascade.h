// Whether a step reads the prefix that its rows share once for all of them (cascade attention, D3),
// and how long that prefix is. This decision is made here only.
//
//   StepCascade cascade({.classes = {{.layer = {.num_q_heads = 32, ...}, .num_layers = 32}},
//                        .costs = H200Profile().cascade_map, .num_slots = 64, ...});
//   // Each batch, after the slot mirror has advanced by it:
//   const StepCascade::Decision decision = cascade.Decide(batch, mirror);
//   LOG(INFO) << decision.rule;   // "cascade: 5200.0 us flat, 1600.0 us with the prefix apart"
//
// A step may do so if all its rows are decodes of one query and their block tables begin with the
// same blocks: sequences of one prompt that the prefix cache served, or forks. Only whole blocks
// before the rows' own queries count, in the tables of all KV groups whose layers see a sequence's
// whole past. attention/merge/cascade_rule.h decides whether it is faster, over all those layers;
// layers of windows and chunks are not affected.
//
// Thread safety: none; one owner. Cost of a step: a few operations per row, and the cost of its
// updates (runner/common_blocks.h); no allocation after construction.

#ifndef REPRISE_RUNNER_STEP_CASCADE_H_
#define REPRISE_RUNNER_STEP_CASCADE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "reprise/attention/merge/cascade_rule.h"
#include "reprise/runner/common_blocks.h"
#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/slots/slot_mirror.h"

namespace reprise {

// Identical layers that read all keys of a sequence.
struct CascadeLayers {
  CascadeShape layer = {};  // of one layer; Decide() fills in the step's fields
  int num_layers = 0;
};

struct StepCascadeOptions {
  std::vector<CascadeLayers> classes = {};
  std::vector<int> groups = {};  // KV groups of those layers
  CascadeCosts costs = {};
  int num_slots = 0;
  int max_blocks = 0;
  int block_size = 0;
  int max_seq_len = 0;
};

class StepCascade {
 public:
  struct Decision {
    CascadeDecision rule;       // of all layers together
    int common_prefix_len = 0;  // keys to read once; 0: none
  };

  explicit StepCascade(const StepCascadeOptions& options);

  // The smallest number of rows for which it can be faster, if the sequences share all but their
  // last token; nullopt if there is none.
  std::optional<int> least_rows() const { return least_rows_; }

  // Call it for every batch. REQUIRES: `mirror` has advanced by it.
  Decision Decide(const ScheduledBatch& batch, const SlotMirror& mirror);

  // The number of non-empty steps with this reason.
  int64_t num_steps(CascadeReason reason) const { return num_steps_[static_cast<int>(reason)]; }

 private:
  // The inputs of the decision.
  struct Lengths {
    int num_rows = 0;
    int64_t sum = 0;
    int64_t max = 0;
  };

  Decision Choose(const ScheduledBatch& batch, const SlotMirror& mirror);
  // REQUIRES: common_prefix_len is not negative.
  CascadeDecision Rule(const Lengths& lengths, int64_t common_prefix_len) const;
  std::optional<int> FindLeastRows() const;

  StepCascadeOptions options_;
  std::vector<CommonBlocks> blocks_;  // one per group
  std::optional<int> least_rows_;
  std::array<int64_t, kNumCascadeReasons> num_steps_ = {};
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_CASCADE_H_
