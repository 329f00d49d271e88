// Results of a step with drafts, for tests of the scheduler.

#ifndef REPRISE_ENGINE_TESTING_NEW_TOKENS_H_
#define REPRISE_ENGINE_TESTING_NEW_TOKENS_H_

#include <cstdint>
#include <vector>

#include "reprise/runner/slots/scheduled_batch.h"
#include "reprise/runner/step_result.h"

namespace reprise {

// New tokens of the rows of a step, in the format of a runner with up to `num_drafts` drafts per
// row.
class NewTokens {
 public:
  NewTokens(int num_drafts, const std::vector<std::vector<int32_t>>& rows)
      : stride_(1 + num_drafts) {
    for (const std::vector<int32_t>& row : rows) {
      tokens_.push_back(row.empty() ? -2 : row.back());
      counts_.push_back(static_cast<int32_t>(row.size()));
      all_.insert(all_.end(), row.begin(), row.end());
      all_.resize(tokens_.size() * stride_, -99);
    }
  }

  StepResult output() const {
    return {.tokens = tokens_,
            .num_new_tokens = counts_,
            .new_tokens = all_,
            .new_tokens_stride = stride_};
  }

 private:
  int stride_;
  std::vector<int32_t> tokens_, counts_, all_;
};

// Returns the draft count of each row of a batch.
inline std::vector<int> DraftsOf(const ScheduledBatch& batch) {
  std::vector<int> drafts;
  for (const ScheduledRow& row : batch.rows) drafts.push_back(row.draft_count());
  return drafts;
}

}  // namespace reprise

#endif  // REPRISE_ENGINE_TESTING_NEW_TOKENS_H_
