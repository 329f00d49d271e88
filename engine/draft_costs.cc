#include "reprise/engine/draft_costs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "glog/logging.h"

namespace reprise {

void DraftCosts::Times::Add(double us, int64_t now) {
  us_[count_++ % kNumTimes] = us;
  last_ = now;
  std::array<double, kNumTimes> sorted = us_;
  const int64_t num_times = std::min<int64_t>(count_, kNumTimes);
  const auto middle = sorted.begin() + num_times / 2;
  std::nth_element(sorted.begin(), middle, sorted.begin() + num_times);
  median_ = *middle;
}

DraftCosts::DraftCosts(absl::Span<const int> numbers) : numbers_({0}) {
  for (const int number : numbers) {
    CHECK(numbers_.back() < number && number <= kMaxDrafts) << number;
    numbers_.push_back(number);
  }
}

int DraftCosts::IndexOf(int num_rows) {
  CHECK_GE(num_rows, 1);
  return std::min(static_cast<int>(std::bit_width(static_cast<uint32_t>(num_rows))) - 1, 15);
}

int DraftCosts::NumberFor(int num_drafts) const {
  const auto it = std::lower_bound(numbers_.begin(), numbers_.end(), num_drafts);
  return it == numbers_.end() ? numbers_.back() : *it;
}

double DraftCosts::acceptance(int place) const {
  // A position that no row has reached is assumed to have the acceptance of the last known
  // position.
  while (place > 0 && places_[place].num_rows == 0) --place;
  return places_[place].mean;
}

DraftCosts::Gains DraftCosts::ExpectedGains() const {
  Gains gains = {};
  double all_before = 1;
  for (int place = 0; place < kMaxDrafts; ++place) {
    all_before *= acceptance(place);
    gains[place + 1] = gains[place] + all_before;
  }
  return gains;
}

double DraftCosts::Rate(const Rows& rows, const DraftableStep& step, const Gains& gains,
                        int number) {
  const double num_tokens = step.num_rows + step.num_drafting * gains[std::min(number, step.most)];
  return num_tokens / rows.times[number].median();
}

int DraftCosts::BestMeasured(const Rows& rows, const DraftableStep& step,
                             const Gains& gains) const {
  const int top = NumberFor(step.most);
  int best = 0;
  double best_rate = 0;
  for (const int number : numbers_) {
    if (number > top) break;
    if (!rows.times[number].is_known()) continue;
    double rate = Rate(rows, step, gains, number);
    if (number == rows.chosen) rate *= 1 + kMargin;
    if (rate > best_rate) best = number;
    best_rate = std::max(best_rate, rate);
  }
  return best;
}

std::optional<int> DraftCosts::NumberToMeasure(const Rows& rows, const DraftableStep& step,
                                               const Gains& gains) const {
  const int top = NumberFor(step.most);
  if (!rows.times[top].is_known() || places_[0].num_rows < kFirstRows) return top;
  if (!rows.times[0].is_known()) return 0;
  const double best_rate = Rate(rows, step, gains, BestMeasured(rows, step, gains));
  std::optional<int> promising;  // the largest one: smaller draft counts are then compared with it
  double measured_us = 0;        // time of the next smaller draft count that was measured
  for (const int number : numbers_) {
    if (number >= top) break;
    if (rows.times[number].is_known()) {
      measured_us = rows.times[number].median();
      continue;
    }
    const double num_tokens = step.num_rows + step.num_drafting * gains[number];
    if (num_tokens > best_rate * (1 + kMargin) * measured_us) promising = number;
  }
  return promising;
}

int DraftCosts::NumberToProbe(const Rows& rows, const DraftableStep& step) const {
  const int top = NumberFor(step.most);
  const bool is_for_acceptance = rows.num_calls / kProbeInterval % 2 == 0;
  if (is_for_acceptance && rows.chosen != top) return top;
  int oldest = rows.chosen;
  for (const int number : numbers_) {
    if (number > top || number == rows.chosen) continue;
    if (oldest == rows.chosen || rows.times[number].last() < rows.times[oldest].last()) {
      oldest = number;
    }
  }
  return oldest;
}

int DraftCosts::Choose(const DraftableStep& step) {
  if (step.most == 0 || step.num_drafting == 0) return 0;
  Rows& rows = rows_[IndexOf(step.num_rows)];
  const Gains gains = ExpectedGains();
  if (const std::optional<int> number = NumberToMeasure(rows, step, gains)) {
    return std::min(*number, step.most);
  }
  rows.chosen = BestMeasured(rows, step, gains);
  const int64_t place = rows.num_calls++ % kProbeInterval;
  if (place < kProbeInterval - kProbeSteps) return std::min(rows.chosen, step.most);
  if (place == kProbeInterval - kProbeSteps) rows.probed = NumberToProbe(rows, step);
  return std::min(rows.probed, step.most);
}

bool DraftCosts::IsMeasured(const DraftableStep& step) const {
  const Rows& rows = rows_[IndexOf(step.num_rows)];
  return rows.times[NumberFor(step.most)].is_known() && rows.times[0].is_known() &&
         places_[0].num_rows >= kFirstRows;
}

int DraftCosts::Best(const DraftableStep& step) const {
  if (step.most == 0 || step.num_drafting == 0) return 0;
  if (!IsMeasured(step)) return step.most;
  const Rows& rows = rows_[IndexOf(step.num_rows)];
  return std::min(BestMeasured(rows, step, ExpectedGains()), step.most);
}

int DraftCosts::ChooseBesidePrompts(const DraftableStep& step) {
  if (step.most == 0 || step.num_drafting == 0) return 0;
  if (places_[0].num_rows < kFirstRows) return step.most;
  // These probes measure acceptance if every step has prompts.
  const int64_t place = num_beside_prompts_++ % kProbeInterval;
  if (place >= kProbeInterval - kProbeSteps) return step.most;
  if (IsMeasured(step)) return Best(step);
  int num_drafts = 0;
  double reached = 1;
  while (num_drafts < step.most && (reached *= acceptance(num_drafts)) >= kMinReached) {
    ++num_drafts;
  }
  return num_drafts;
}

void DraftCosts::ObserveStep(const TimedStep& step) {
  const int number = NumberFor(step.num_drafts);
  const std::optional<int> before = std::exchange(last_, number);
  ++num_observed_;
  if (!(step.us > 0)) return;
  Rows& rows = rows_[IndexOf(step.num_rows)];
  if (before != number && ++rows.num_skipped[number] <= kMaxSkipped) return;
  rows.num_skipped[number] = 0;
  rows.times[number].Add(step.us, num_observed_);
}

void DraftCosts::ObserveRow(const VerifiedDrafts& row) {
  CHECK(0 <= row.num_accepted && row.num_accepted <= row.num_drafts) << row.num_accepted;
  const int64_t max_rows = std::max<int64_t>(kMeanRows, int64_t{kMeanSteps} * row.num_rows);
  // Drafts after the first rejected draft were not reached and are not counted.
  const int num_places = std::min({row.num_accepted + 1, row.num_drafts, kMaxDrafts});
  for (int i = 0; i < num_places; ++i) {
    Place& place = places_[i];
    const double num_rows = static_cast<double>(std::min(++place.num_rows, max_rows));
    place.mean += ((i < row.num_accepted ? 1.0 : 0.0) - place.mean) / num_rows;
  }
}

}  // namespace reprise
