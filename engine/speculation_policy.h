// How many drafts a row gets: a limit by the batch, and a length that follows what each sequence
// accepts (docs/speculation.md).
//
//   DraftLength length;                          // one a sequence
//   row.num_drafts = length.Next(most);          // for each row that could have drafts
//   length.Observe(row.num_drafts, accepted);    // when the row's tokens are known
//
// Thread safety: plain values.

#ifndef REPRISE_ENGINE_SPECULATION_POLICY_H_
#define REPRISE_ENGINE_SPECULATION_POLICY_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

struct SpeculationPolicy {
  // The most drafts of a row, of trees the most levels, 0 to kMaxDrafts and what the runner serves; 0:
  // no speculation.
  int num_drafts = 0;
  // Steps of more rows have no drafts: from so many on, verifying drafts costs more time than the
  // accepted ones save. 0: any number of rows.
  int max_speculating_rows = 0;
  // Measures what steps take, by the numbers of rows and drafts, and what is accepted: the rows of a
  // step have the number of drafts that brings the most tokens a second, or none (engine/draft_costs.h),
  // in place of a number by what each sequence accepts (DraftLength). Which steps have drafts then
  // depends on the clock; texts do not, except by rejection sampling (DraftAcceptance).
  bool measures_steps = false;
};

// InvalidArgument naming the field.
absl::Status CheckSpeculationPolicy(const SpeculationPolicy& policy);

// The number of drafts of one sequence's rows, from the mean number that its last rows accepted: one
// more than that mean, rounded. So it grows by about one a row while all drafts are accepted, and
// shrinks when they are not. Below kLeastAccepted the sequence has none, but for a probe: one draft
// in every kProbeInterval-th row. Depends on nothing but the calls.
class DraftLength {
 public:
  // Of the exponential average: the weight of the newest row.
  static constexpr float kWeight = 0.25f;
  // Fewer accepted drafts a row do not pay for their verification.
  static constexpr float kLeastAccepted = 0.25f;
  static constexpr int kProbeInterval = 16;

  // The number of drafts of the next row, which may have up to `most`. At first it is all of them.
  // REQUIRES: most >= 0.
  int Next(int most);

  // A row had `num_drafts` > 0, of which `num_accepted` were accepted. Before the first, all are taken
  // to be accepted, which counts half then. A row whose few drafts were all accepted says nothing
  // against more.
  void Observe(int num_drafts, int num_accepted);

  // The mean; negative before the first row.
  float mean_accepted() const { return mean_accepted_; }

  // Whether the sequence accepts enough for rows to have drafts that are no probes.
  bool pays() const { return mean_accepted_ < 0 || mean_accepted_ >= kLeastAccepted; }

 private:
  float mean_accepted_ = -1.0f;
  int num_rows_without_ = 0;  // since the last draft
};

// What drafts have come to. Rows whose tokens were not taken, such as those of preempted sequences,
// are not counted.
struct SpeculationStatistics {
  int64_t num_rows = 0;  // with drafts
  int64_t num_drafts = 0;
  int64_t num_accepted = 0;
  // By place behind the last token: [0] is the first draft of a row, or all of a tree's first level.
  std::array<int64_t, kMaxDrafts> num_drafts_at = {};
  std::array<int64_t, kMaxDrafts> num_accepted_at = {};
  // Rows with drafts in which the drafter only saw tokens that had been decoded without it, and proposed
  // none (DrafterKeys). The counts above are without them.
  int64_t num_catch_up_rows = 0;
  // Steps whose rows could have had drafts, and had none: those of more than max_speculating_rows, and
  // those of numbers of rows where drafts do not pay by what was measured.
  int64_t num_too_large_steps = 0;
  int64_t num_unpaid_steps = 0;

  // Of a row with drafts at so many places, of a tree more drafts than that. REQUIRES:
  // 0 <= accepted <= places <= kMaxDrafts, places <= drafts.
  void Add(int places, int accepted, int drafts);
  // New tokens of a row with drafts, on average; 0 before the first.
  double tokens_per_row() const;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_SPECULATION_POLICY_H_
