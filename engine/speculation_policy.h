// The number of drafts per row: limits for a step, and a draft count that adapts to the acceptance
// of each sequence (docs/speculation.md).
//
//   DraftLength length;                          // one per sequence
//   row.num_drafts = length.Next(most);          // for each row that may have drafts
//   length.Observe(row.num_drafts, accepted);    // when the row's tokens are known
//
// Thread safety: plain values, without synchronisation.

#ifndef REPRISE_ENGINE_SPECULATION_POLICY_H_
#define REPRISE_ENGINE_SPECULATION_POLICY_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

struct SpeculationPolicy {
  // Maximum number of drafts per row (levels for trees), at most kMaxDrafts and at most what the
  // runner supports. 0: no speculation.
  int num_drafts = 0;
  // Steps with more rows than this do not speculate, because verifying drafts would cost more time
  // than accepted drafts save. 0: no limit.
  int max_speculating_rows = 0;
  // Measures step times by row count and draft count, and the acceptance of drafts. Every row of a
  // step then has the draft count with the highest throughput, which may be 0
  // (engine/draft_costs.h), instead of a draft count by the acceptance of its sequence
  // (DraftLength). Which steps have drafts then depends on the clock. The texts do not, except with
  // DraftAcceptance::kRejection.
  bool measures_steps = false;
};

// Returns InvalidArgument if a field is out of range; the message names the field.
absl::Status CheckSpeculationPolicy(const SpeculationPolicy& policy);

// The draft count of one sequence's rows: the average number of drafts that its last rows accepted,
// rounded, plus 1. While all drafts are accepted, the draft count grows by one every few rows; it
// shrinks if fewer than the average are accepted. If the average is below kMinAccepted, the
// sequence has no drafts, except for a probe with one draft in every kProbeInterval-th row.
// Deterministic: depends only on the calls.
class DraftLength {
 public:
  // Weight of the newest row in the exponential average.
  static constexpr float kWeight = 0.25f;
  // Average number of accepted drafts per row below which verification costs more than it saves.
  static constexpr float kMinAccepted = 0.25f;
  static constexpr int kProbeInterval = 16;  // rows

  // Returns the draft count of the next row, at most `most`. Returns `most` before the first
  // Observe(). REQUIRES: most >= 0.
  int Next(int most);

  // Records that the model accepted `num_accepted` of a row's `num_drafts` drafts. The average
  // before the first row counts as num_drafts, with a weight of 1/2. A row whose drafts were all
  // accepted does not lower the average. REQUIRES: num_drafts > 0.
  void Observe(int num_drafts, int num_accepted);

  // The average number of accepted drafts per row; negative before the first row.
  float mean_accepted() const { return mean_accepted_; }

  // Whether the sequence accepts enough drafts to speculate in every row, not only in probes.
  bool pays() const { return mean_accepted_ < 0 || mean_accepted_ >= kMinAccepted; }

 private:
  float mean_accepted_ = -1.0f;
  int num_rows_without_ = 0;  // since the last draft
};

// Counts of proposed and accepted drafts. Rows whose tokens were discarded, such as the rows of
// preempted sequences, are not counted.
struct SpeculationStatistics {
  int64_t num_rows = 0;  // with drafts
  int64_t num_drafts = 0;
  int64_t num_accepted = 0;
  // By position after the last token: [0] is the first draft of a row, or the first level of a
  // tree.
  std::array<int64_t, kMaxDrafts> num_drafts_at = {};
  std::array<int64_t, kMaxDrafts> num_accepted_at = {};
  // Catch-up rows: rows with drafts in which the drafter only read tokens that were decoded without
  // it, and proposed nothing (DrafterKeys). Not included in the counts above.
  int64_t num_catch_up_rows = 0;
  // Steps that could have had drafts and had none: because they had more than max_speculating_rows
  // rows, or because the step got a draft count of 0 by the measured times, or to measure it.
  int64_t num_too_large_steps = 0;
  int64_t num_unpaid_steps = 0;

  // Counts a row with `drafts` drafts at `places` positions (levels for trees), of which the first
  // `accepted` were accepted. REQUIRES: 0 <= accepted <= places <= kMaxDrafts, places <= drafts.
  void Add(int places, int accepted, int drafts);
  // Average number of new tokens per row with drafts; 0 before the first row.
  double tokens_per_row() const;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SPECULATION_POLICY_H_
