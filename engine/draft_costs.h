// How many drafts bring the most tokens a second, by measured times: verifying more of them takes
// longer, and so do further passes of a draft model, while each draft is accepted more rarely than
// the one before it (docs/speculation.md).
//
//   DraftCosts costs({1, 2, 4, 8});                  // numbers of drafts that steps have graphs for
//   const int num_drafts = costs.Choose({.num_rows = 32, .num_drafting = 32, .most = 8});
//   costs.ObserveStep({.num_rows = 32, .num_drafts = 4, .us = 7200});        // when it is done
//   costs.ObserveRow({.num_drafts = 4, .num_accepted = 3, .num_rows = 32});  // of each of its rows
//
// For numbers of rows that are alike (1, 2 to 3, 4 to 7, ...) it keeps the median time of the last
// steps with each number of drafts, and of plain ones; for all together the probability that a draft
// is accepted, by place. A step has the number whose expected tokens over its time are the most.
//
// Numbers are measured before they are compared: first the largest, which tells what is accepted, then
// plain steps, then those between that could be the best, if they took no longer than the next smaller
// measured one. From then on kProbeSteps of kProbeInterval steps have another number: the largest, and
// the one whose measurement is the oldest, in turn.
//
// Where the host launches steps ahead, the time of a step may be in part that of the next one. So a
// step counts only behind one with the same number of drafts. Where numbers of rows take turns, each
// with another number of drafts, or with steps that are not measured, there is none: then one of every
// kMostSkipped + 1 steps counts.
//
// Steps with chunks of prompts are not measured, for their times are those of the chunks. If what
// decodes alone take is not known, acceptance decides: a step has as many drafts as are likely enough
// to be accepted (kLeastReached).
//
// Thread safety: none; one owner. No allocation after construction. Choose() computes for less than a
// microsecond.

#ifndef REPRISE_ENGINE_DRAFT_COSTS_H_
#define REPRISE_ENGINE_DRAFT_COSTS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "reprise/runner/speculation/speculation_options.h"

namespace reprise {

// A step of decodes that is to be made.
struct DraftableStep {
  int num_rows = 0;      // at least 1
  int num_drafting = 0;  // of them, those that may have drafts
  int most = 0;          // drafts that a row may have, of trees levels: at least 0
};

// A step of decodes that was measured.
struct TimedStep {
  int num_rows = 0;    // at least 1
  int num_drafts = 0;  // of the row with the most, of trees levels; 0: a plain step
  double us = 0;       // above 0, else it is not counted
};

// A row whose drafts were verified.
struct VerifiedDrafts {
  int num_drafts = 0;    // at least 1, of trees levels
  int num_accepted = 0;  // the first ones, at most num_drafts
  int num_rows = 0;      // of its step, at least 1
};

class DraftCosts {
 public:
  static constexpr int kNumTimes = 7;    // of each number of drafts, of which the median is taken
  static constexpr int kLeastTimes = 3;  // before it is compared
  static constexpr int kFirstRows = 16;  // with drafts, before anything is compared
  static constexpr int kProbeInterval = 256;  // steps
  static constexpr int kProbeSteps = 4;       // the last of them
  // Probabilities are means over so many rows, or over the rows of so many steps if those are more.
  static constexpr int kMeanRows = 32;
  static constexpr int kMeanSteps = 8;
  static constexpr int kMostSkipped = 8;  // steps in a row that do not count
  // The number of drafts changes for one that brings more by this part.
  static constexpr double kMargin = 0.02;
  // Of drafts that are verified beside prompts, where no times are known: the least probability that the
  // last one is reached and accepted. It adds a token to products that have many, so one in four pays.
  static constexpr double kLeastReached = 0.25;

  // `numbers`: ascending, in [1, kMaxDrafts]. A step whose rows have up to n drafts takes as long as
  // one of the smallest number that is not below n. Empty: there are no drafts.
  explicit DraftCosts(absl::Span<const int> numbers);

  // The number of drafts of the next step's rows, at most step.most; 0: a plain step. Counts the call,
  // for probes.
  int Choose(const DraftableStep& step);

  // The same of a step that is not measured, such as one with chunks of prompts: Best() where times
  // are known, else by acceptance. Counts the call, for probes of the largest number.
  int ChooseBesidePrompts(const DraftableStep& step);

  // What brings the most by the times that were measured; step.most before they are.
  int Best(const DraftableStep& step) const;

  // The next step that is done.
  void ObserveStep(const TimedStep& step);
  // The same for a step with chunks of prompts, or one that failed: it is not measured.
  void ObserveOtherStep() { last_ = std::nullopt; }

  // What became of a row's drafts, in any step.
  void ObserveRow(const VerifiedDrafts& row);

  // The probability that a draft is accepted if the `place` drafts before it are: 1 before the first.
  // REQUIRES: 0 <= place < kMaxDrafts.
  double acceptance(int place) const;

 private:
  // Of the last kNumTimes steps. A few that waited for something else than their work do not matter.
  class Times {
   public:
    void Add(double us, int64_t now);
    bool is_known() const { return count_ >= kLeastTimes; }
    double median() const { return median_; }
    int64_t last() const { return last_; }  // `now` of the last call; 0 before the first

   private:
    std::array<double, kNumTimes> us_ = {};
    int64_t count_ = 0;
    int64_t last_ = 0;
    double median_ = 0;
  };
  struct Rows {
    std::array<Times, kMaxDrafts + 1> times;           // by number of drafts
    std::array<int, kMaxDrafts + 1> num_skipped = {};  // since the last time of each
    int chosen = 0;                                    // among the measured ones: the last
    int64_t num_calls = 0;                             // that were not first measurements
    int probed = 0;
  };
  struct Place {
    double mean = 1;
    int64_t num_rows = 0;
  };
  using Gains = std::array<double, kMaxDrafts + 1>;

  static int IndexOf(int num_rows);
  // Whether the times of the step's largest number and of plain steps are known, and acceptance is.
  bool IsMeasured(const DraftableStep& step) const;
  // The smallest of the numbers that is not below `num_drafts`; 0 for 0.
  int NumberFor(int num_drafts) const;
  // [n]: accepted drafts of a row with n, on average.
  Gains ExpectedGains() const;
  // Expected tokens a microsecond. REQUIRES: number <= NumberFor(step.most) has been measured.
  static double Rate(const Rows& rows, const DraftableStep& step, const Gains& gains, int number);
  // The best of what has been measured, but rows.chosen unless that is worse by kMargin. REQUIRES: plain
  // steps have been.
  int BestMeasured(const Rows& rows, const DraftableStep& step, const Gains& gains) const;
  // What is to be measured before the step's choice can be made; nullopt: nothing.
  std::optional<int> NumberToMeasure(const Rows& rows, const DraftableStep& step,
                                     const Gains& gains) const;
  // The number that a probe has.
  int NumberToProbe(const Rows& rows, const DraftableStep& step) const;

  std::vector<int> numbers_;   // with 0
  std::array<Rows, 16> rows_;  // [i]: of 2^i rows and more, below 2^(i + 1); the last: and more
  std::array<Place, kMaxDrafts> places_;
  int64_t num_beside_prompts_ = 0;  // calls of ChooseBesidePrompts() when acceptance was known
  std::optional<int> last_;         // the number of the step before, if it was measured
  int64_t num_observed_ = 0;        // steps
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_DRAFT_COSTS_H_
