#include "reprise/engine/scheduling/open_batches.h"

#include <utility>

#include "glog/logging.h"

namespace reprise {

OpenBatches::OpenBatches(const RunnerShape& shape) : max_open_(shape.max_steps_in_flight) {
  open_.reserve(max_open_);
  spare_.resize(max_open_);
  for (std::vector<OpenRow>& batch : spare_) batch.reserve(shape.max_num_seqs);
}

void OpenBatches::Push(std::vector<OpenRow>& rows) {
  CHECK(!spare_.empty()) << "max_steps_in_flight = " << max_open_;
  CHECK(!rows.empty());
  open_.push_back(std::move(rows));
  rows = std::move(spare_.back());
  spare_.pop_back();
}

absl::Span<const OpenRow> OpenBatches::oldest() const {
  CHECK(!open_.empty());
  return open_.front();
}

std::vector<OpenRow> OpenBatches::TakeOldest() {
  CHECK(!open_.empty());
  std::vector<OpenRow> batch = std::move(open_.front());
  open_.erase(open_.begin());
  return batch;
}

std::vector<OpenRow> OpenBatches::TakeNewest() {
  CHECK(!open_.empty());
  std::vector<OpenRow> batch = std::move(open_.back());
  open_.pop_back();
  return batch;
}

void OpenBatches::Recycle(std::vector<OpenRow> rows) {
  rows.clear();
  spare_.push_back(std::move(rows));
}

void OpenBatches::CheckInvariants() const {
  CHECK_LE(open_.size(), max_open_) << "1";
  for (const std::vector<OpenRow>& batch : open_) CHECK(!batch.empty()) << "1";
  CHECK_EQ(open_.size() + spare_.size(), max_open_) << "2";
}

}  // namespace reprise
