#include "reprise/cache/blocks/deferred_releases.h"

namespace reprise {

void DeferredReleases::ReleasePassed(int64_t last_passed,
                                     absl::FunctionRef<void(BlockId)> release) {
  while (!releases_.empty() && releases_.front().event <= last_passed) {
    const BlockId block = releases_.front().block;
    releases_.pop_front();
    release(block);
  }
}

}  // namespace reprise
