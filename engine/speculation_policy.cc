#include "reprise/engine/speculation_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace reprise {

absl::Status CheckSpeculationPolicy(const SpeculationPolicy& policy) {
  if (policy.num_drafts < 0 || policy.num_drafts > kMaxDrafts) {
    return absl::InvalidArgumentError(absl::StrCat("speculation.num_drafts must be in [0, ",
                                                   kMaxDrafts, "]: got ", policy.num_drafts));
  }
  if (policy.max_speculating_rows < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "speculation.max_speculating_rows must be at least 0: got ", policy.max_speculating_rows));
  }
  return absl::OkStatus();
}

int DraftLength::Next(int most) {
  if (most == 0 || mean_accepted_ < 0) return most;
  if (!pays()) {
    if (++num_rows_without_ < kProbeInterval) return 0;
    num_rows_without_ = 0;
    return 1;
  }
  return std::min(most, 1 + static_cast<int>(std::lround(mean_accepted_)));
}

void DraftLength::Observe(int num_drafts, int num_accepted) {
  const float accepted = static_cast<float>(num_accepted);
  if (mean_accepted_ < 0) {
    mean_accepted_ = (static_cast<float>(num_drafts) + accepted) / 2;
    return;
  }
  if (num_accepted == num_drafts && accepted < mean_accepted_) return;
  mean_accepted_ += kWeight * (accepted - mean_accepted_);
}

void SpeculationStatistics::Add(int places, int accepted, int drafts) {
  CHECK(0 <= accepted && accepted <= places && places <= kMaxDrafts && places <= drafts)
      << accepted << " of " << places << " places with " << drafts << " drafts";
  ++num_rows;
  num_drafts += drafts;
  num_accepted += accepted;
  for (int i = 0; i < places; ++i) ++num_drafts_at[i];
  for (int i = 0; i < accepted; ++i) ++num_accepted_at[i];
}

double SpeculationStatistics::tokens_per_row() const {
  if (num_rows == 0) return 0;
  return 1 + static_cast<double>(num_accepted) / static_cast<double>(num_rows);
}

}  // namespace reprise
