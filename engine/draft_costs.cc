#include "engine/draft_costs.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "glog/logging.h"

namespace reprise {

double DraftCosts::Times::Median() const {
  std::array<double, kNumTimes> sorted = us_;
  std::nth_element(sorted.begin(), sorted.begin() + kNumTimes / 2, sorted.end());
  return sorted[kNumTimes / 2];
}

int DraftCosts::IndexOf(int num_rows) {
  CHECK_GE(num_rows, 1);
  return std::min(static_cast<int>(std::bit_width(static_cast<uint32_t>(num_rows))) - 1, 15);
}

bool DraftCosts::Decide(int num_rows) {
  Rows& rows = rows_[IndexOf(num_rows)];
  if (rows.drafts.count() < kFirstSteps) return true;
  if (rows.plain.count() < kNumTimes) return false;
  const bool pays = rows.pays();
  const int place = rows.num_since_probe;
  rows.num_since_probe = (place + 1) % kProbeInterval;
  return place < kProbeInterval - kProbeSteps ? pays : !pays;
}

bool DraftCosts::pays(int num_rows) const {
  const Rows& rows = rows_[IndexOf(num_rows)];
  return !rows.is_known() || rows.pays();
}

void DraftCosts::Observe(const TimedStep& step) {
  const Kind kind = step.num_drafts == 0 ? Kind::kPlain : Kind::kDrafts;
  const bool is_alike = std::exchange(last_, kind) == kind;
  if (!is_alike || !(step.us > 0)) return;
  Rows& rows = rows_[IndexOf(step.num_rows)];
  if (kind == Kind::kPlain) {
    rows.plain.Add(step.us);
    return;
  }
  rows.drafts.Add(step.us);
  const double weight = std::max(kWeight, 1.0 / static_cast<double>(rows.drafts.count()));
  const double tokens = static_cast<double>(step.num_new_tokens) / step.num_rows;
  rows.tokens += weight * (tokens - rows.tokens);
}

}  // namespace reprise
