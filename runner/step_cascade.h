// Decides whether a step reads the prefix that its rows share once for all rows (cascade attention,
// D3), and the length of that prefix. No other code makes this decision.
//
//   StepCascade cascade({.classes = {{.layer = {.num_q_heads = 32, ...}, .num_layers = 32}},
//                        .costs = H200Profile().cascade_costs, .num_slots = 64, ...});
//   // For each batch, after the slot mirror has advanced by it:
//   const StepCascade::Decision decision = cascade.Decide(batch, mirror);
//   LOG(INFO) << decision.rule;   // "cascade: 5200.0 us flat, 1600.0 us with the prefix apart"
//
// A step may use cascade attention if it has at least two rows, all of them decodes with one query,
// and their block tables begin with the same blocks: sequences with a common prompt from the prefix
// cache, or forks. Only whole blocks before the rows' own queries count, in the tables of all KV
// groups whose layers read the whole sequence. attention/merge/cascade_rule.h estimates whether
// cascade attention is faster over all these layers. Layers with windows or chunks are not
// affected.
//
// Thread safety: none; one owner. Cost per step: a few operations per row and group, and the cost
// of the block table updates (runner/common_blocks.h). Does not allocate after construction.

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
  CascadeShape layer = {};  // shape of one layer; Decide() sets the fields of the step
  int num_layers = 0;
};

struct StepCascadeOptions {
  std::vector<CascadeLayers> classes = {};
  std::vector<int> groups = {};  // KV groups of these layers
  CascadeCosts costs = {};
  int num_slots = 0;
  int max_blocks = 0;
  int block_size = 0;
  int max_seq_len = 0;
};

class StepCascade {
 public:
  struct Decision {
    CascadeDecision rule;       // estimate for all layers together
    int common_prefix_len = 0;  // number of keys to read once; 0: none
  };

  explicit StepCascade(const StepCascadeOptions& options);

  // The smallest number of rows for which cascade attention can be faster, if the sequences share
  // all tokens except the last; nullopt if there is no such number.
  std::optional<int> min_rows() const { return min_rows_; }

  // Decides for one batch. Must be called for every batch. REQUIRES: `mirror` has advanced by it.
  Decision Decide(const ScheduledBatch& batch, const SlotMirror& mirror);

  // Returns the number of non-empty steps with this reason.
  int64_t num_steps(CascadeReason reason) const { return num_steps_[static_cast<int>(reason)]; }

 private:
  // Input of the decision.
  struct Lengths {
    int num_rows = 0;
    int64_t sum = 0;
    int64_t max = 0;
  };

  Decision Choose(const ScheduledBatch& batch, const SlotMirror& mirror);
  // REQUIRES: common_prefix_len is not negative.
  CascadeDecision Rule(const Lengths& lengths, int64_t common_prefix_len) const;
  std::optional<int> FindMinRows() const;

  StepCascadeOptions options_;
  std::vector<CommonBlocks> blocks_;  // one per group
  std::optional<int> min_rows_;
  std::array<int64_t, kNumCascadeReasons> num_steps_ = {};
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_CASCADE_H_
