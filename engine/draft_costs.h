// Whether drafts pay, by measured times: from some number of rows on a step is bound by computation,
// and verifying drafts costs more than the accepted ones save (docs/speculation.md).
//
//   DraftCosts costs;
//   const bool has_drafts = costs.Decide(num_rows);     // of the next step
//   costs.Observe({.num_rows = 32, .num_drafts = 128, .num_new_tokens = 71, .us = 7200});
//
// Numbers of rows that are alike (1, 2 to 3, 4 to 7, ...) are measured together: the median time of
// the last steps with drafts and of the last plain ones, and how many tokens a row with drafts brings
// on average. Drafts pay while they bring more tokens a second than plain steps. First both kinds are
// measured, with drafts and then without; from then on kProbeSteps of kProbeInterval steps are of
// the kind that the others are not.
//
// Where the host launches steps ahead, the time of a step may be in part that of the next one. So a
// step counts only behind one of its kind.
//
// Thread safety: none; one owner. No allocation.

#ifndef ENGINE_DRAFT_COSTS_H_
#define ENGINE_DRAFT_COSTS_H_

#include <array>
#include <cstdint>

namespace reprise {

// A step of decodes that was measured.
struct TimedStep {
  int num_rows = 0;        // at least 1
  int num_drafts = 0;      // of all rows; 0: a plain step
  int num_new_tokens = 0;  // of all rows
  double us = 0;           // above 0, else it is not counted
};

class DraftCosts {
 public:
  static constexpr int kFirstSteps = 16;       // with drafts, before they are compared
  static constexpr int kNumTimes = 7;          // of each kind, of which the median is taken
  static constexpr int kProbeInterval = 256;   // steps
  static constexpr int kProbeSteps = 4;        // the last of them
  static constexpr double kWeight = 1.0 / 16;  // of the newest step, in the mean of tokens

  // Whether the next step of so many rows is to have drafts. Counts the call, for probes.
  // REQUIRES: num_rows >= 1, here and below.
  bool Decide(int num_rows);

  // What has been measured says so; true until enough was.
  bool pays(int num_rows) const;

  // The next step that is done.
  void Observe(const TimedStep& step);
  // The same for a step with chunks of prompts, or one that failed: it is not measured.
  void ObserveOther() { last_ = Kind::kOther; }

 private:
  enum class Kind : int8_t { kOther, kPlain, kDrafts };
  // Of the last kNumTimes steps. A few that waited for something else than their work do not matter.
  class Times {
   public:
    void Add(double us) { us_[count_++ % kNumTimes] = us; }
    int64_t count() const { return count_; }
    double Median() const;  // REQUIRES: count() >= kNumTimes

   private:
    std::array<double, kNumTimes> us_ = {};
    int64_t count_ = 0;
  };
  struct Rows {
    Times plain;
    Times drafts;
    double tokens = 0;        // of a row of a step with drafts: the mean
    int num_since_probe = 0;  // calls, modulo kProbeInterval

    bool is_known() const { return drafts.count() >= kFirstSteps && plain.count() >= kNumTimes; }
    bool pays() const { return tokens * plain.Median() > drafts.Median(); }
  };

  static int IndexOf(int num_rows);

  std::array<Rows, 16> rows_;  // [i]: of 2^i rows and more, below 2^(i + 1); the last one: and more
  Kind last_ = Kind::kOther;   // of the step before
};

}  // namespace reprise

#endif  // ENGINE_DRAFT_COSTS_H_
