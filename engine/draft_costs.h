// Chooses the draft count with the highest throughput, from measured step times. Verifying more
// drafts takes longer, and so do additional passes of a draft model, while each draft is accepted
// less often than the draft before it (docs/speculation.md).
//
//   DraftCosts costs({1, 2, 4, 8});                  // draft counts that have graphs
//   const int num_drafts = costs.Choose({.num_rows = 32, .num_drafting = 32, .most = 8});
//   costs.ObserveStep({.num_rows = 32, .num_drafts = 4, .us = 7200});        // after the step
//   costs.ObserveRow({.num_drafts = 4, .num_accepted = 3, .num_rows = 32});  // for each row
//
// Row counts are grouped: 1, 2 to 3, 4 to 7, ... For each group, the class keeps the median time of
// the last steps with each draft count, including 0. The acceptance probability per draft position
// is shared by all groups. A step gets the draft count that maximises expected tokens / median
// time.
//
// Draft counts are measured before they are compared, in this order: the largest, which also
// measures acceptance; 0; then the draft counts in between that would have the highest throughput
// if they took no longer than the next smaller measured draft count. After that, kProbeSteps of
// every kProbeInterval steps are probes. Probes alternate between the largest draft count and the
// draft count with the oldest measurement.
//
// If the host launches steps ahead, the measured time of a step may include time of the next step.
// A time therefore counts only if the previous step had the same draft count and was measured, too.
// If draft counts alternate, because row counts alternate or unmeasured steps intervene, no step
// would count; then one of every kMaxSkipped + 1 steps counts.
//
// Steps with prefill chunks are not measured, because the chunks dominate their time. These steps
// use the draft count that is best for decodes only. If it has not been measured, they use the
// largest draft count whose last draft is accepted with a probability of at least kMinReached.
//
// Thread safety: not thread-safe; one owner. Cost: Choose() takes less than a microsecond. Does not
// allocate after construction.

#ifndef REPRISE_ENGINE_DRAFT_COSTS_H_
#define REPRISE_ENGINE_DRAFT_COSTS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

// A step for which a draft count is chosen.
struct DraftableStep {
  int num_rows = 0;      // at least 1
  int num_drafting = 0;  // rows that may have drafts
  int most = 0;          // maximum number of drafts per row (levels for trees), at least 0
};

// A measured step of decodes.
struct TimedStep {
  int num_rows = 0;    // at least 1
  int num_drafts = 0;  // maximum over the rows (levels for trees); 0: a step without drafts
  double us = 0;       // must be above 0, otherwise the step is not counted
};

// A row whose drafts were verified.
struct VerifiedDrafts {
  int num_drafts = 0;    // at least 1 (levels for trees)
  int num_accepted = 0;  // leading drafts, at most num_drafts
  int num_rows = 0;      // rows of the step, at least 1
};

class DraftCosts {
 public:
  static constexpr int kNumTimes = 7;         // samples per draft count; their median is used
  static constexpr int kMinTimes = 3;         // samples before a draft count is compared
  static constexpr int kFirstRows = 16;       // rows with drafts before draft counts are compared
  static constexpr int kProbeInterval = 256;  // steps
  static constexpr int kProbeSteps = 4;       // the last steps of each interval
  // Acceptance is averaged over kMeanRows rows, or over the rows of kMeanSteps steps if they are
  // more.
  static constexpr int kMeanRows = 32;
  static constexpr int kMeanSteps = 8;
  static constexpr int kMaxSkipped = 8;  // consecutive steps that do not count
  // Another draft count must have a throughput higher by this fraction to replace the current one.
  static constexpr double kMargin = 0.02;
  // For steps with prefill chunks, if no times are known: minimum probability that the last draft
  // is reached and accepted. An additional draft adds one token to GEMMs that have many, so an
  // acceptance of one in four is enough.
  static constexpr double kMinReached = 0.25;

  // `numbers`: the draft counts to choose from, ascending, in [1, kMaxDrafts]. A step whose rows
  // have up to n drafts takes as long as a step with the smallest of these draft counts that is at
  // least n. Empty: no drafts.
  explicit DraftCosts(absl::Span<const int> numbers);

  // Returns the draft count of the next step's rows, at most step.most; 0: no drafts. Counts the
  // call, to schedule probes.
  int Choose(const DraftableStep& step);

  // The same for a step that is not measured, such as a step with prefill chunks. Returns Best() if
  // times are known, and otherwise a draft count by acceptance, which is step.most before the first
  // kFirstRows rows. Counts the call, to schedule probes of the largest draft count.
  int ChooseBesidePrompts(const DraftableStep& step);

  // Returns the draft count with the highest throughput by the measured times, or step.most if they
  // have not been measured.
  int Best(const DraftableStep& step) const;

  // Records the time of the next completed step.
  void ObserveStep(const TimedStep& step);
  // Records that the next completed step is not measured, because it had prefill chunks or failed.
  void ObserveOtherStep() { last_ = std::nullopt; }

  // Records the acceptance of one row's drafts, in any step.
  void ObserveRow(const VerifiedDrafts& row);

  // Returns the probability that draft `place` of a row is accepted if all drafts before it are; 1
  // before the first row. REQUIRES: 0 <= place < kMaxDrafts.
  double acceptance(int place) const;

 private:
  // Times of the last kNumTimes steps. The median is robust against a few steps that were delayed
  // by unrelated work.
  class Times {
   public:
    void Add(double us, int64_t now);
    bool is_known() const { return count_ >= kMinTimes; }
    double median() const { return median_; }
    int64_t last() const { return last_; }  // `now` of the last call; 0 before the first

   private:
    std::array<double, kNumTimes> us_ = {};
    int64_t count_ = 0;
    int64_t last_ = 0;
    double median_ = 0;
  };
  struct Rows {
    std::array<Times, kMaxDrafts + 1> times;           // by draft count
    std::array<int, kMaxDrafts + 1> num_skipped = {};  // by draft count, since its last sample
    int chosen = 0;                                    // draft count chosen last by throughput
    int64_t num_calls = 0;  // calls of Choose() after the first measurements
    int probed = 0;         // draft count of the current probes
  };
  struct Place {
    double mean = 1;
    int64_t num_rows = 0;
  };
  using Gains = std::array<double, kMaxDrafts + 1>;

  static int IndexOf(int num_rows);
  // Whether acceptance and the times of draft count 0 and of the step's largest draft count are
  // known.
  bool IsMeasured(const DraftableStep& step) const;
  // Returns the smallest of numbers_ that is at least `num_drafts`, or the largest number if all
  // are smaller.
  int NumberFor(int num_drafts) const;
  // Returns the expected number of accepted drafts per row; entry n is for rows with n drafts.
  Gains ExpectedGains() const;
  // Returns the expected tokens per microsecond. REQUIRES: number <= NumberFor(step.most), and
  // steps with this draft count have been measured.
  static double Rate(const Rows& rows, const DraftableStep& step, const Gains& gains, int number);
  // Returns the measured draft count with the highest rate; the rate of rows.chosen counts kMargin
  // more. REQUIRES: draft count 0 has been measured.
  int BestMeasured(const Rows& rows, const DraftableStep& step, const Gains& gains) const;
  // Returns the next draft count to measure, or nullopt if the measured draft counts suffice to
  // choose.
  std::optional<int> NumberToMeasure(const Rows& rows, const DraftableStep& step,
                                     const Gains& gains) const;
  // Returns the draft count of the next probe.
  int NumberToProbe(const Rows& rows, const DraftableStep& step) const;

  std::vector<int> numbers_;   // the draft counts, including 0
  std::array<Rows, 16> rows_;  // [i]: row counts in [2^i, 2^(i + 1)); the last: all larger ones
  std::array<Place, kMaxDrafts> places_;
  int64_t num_beside_prompts_ = 0;  // calls of ChooseBesidePrompts() with known acceptance
  std::optional<int> last_;         // draft count of the previous step, if it was measured
  int64_t num_observed_ = 0;        // steps
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_DRAFT_COSTS_H_
