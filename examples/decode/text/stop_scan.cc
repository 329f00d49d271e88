#include "examples/decode/text/stop_scan.h"

#include <utility>

#include "glog/logging.h"

namespace reprise {
namespace {

// The length of the longest beginning of `stop` that ends with `byte`, if the first `length` bytes
// of it precede the byte. REQUIRES: length < stop.size().
size_t Extended(const std::string& stop, const std::vector<size_t>& borders, size_t length,
                char byte) {
  while (length > 0 && stop[length] != byte) length = borders[length - 1];
  return stop[length] == byte ? length + 1 : 0;
}

}  // namespace

StopScan::StopScan(std::string stop) {
  CHECK(!stop.empty());
  auto table = std::make_shared<Table>();
  table->stop = std::move(stop);
  table->borders.push_back(0);
  for (size_t i = 1; i < table->stop.size(); ++i) {
    table->borders.push_back(
        Extended(table->stop, table->borders, table->borders.back(), table->stop[i]));
  }
  table_ = std::move(table);
}

bool StopScan::Push(char byte, StopByte kind) {
  DCHECK_LT(num_matched_, table_->stop.size());
  num_matched_ = Extended(table_->stop, table_->borders, num_matched_, byte);
  if (kind == StopByte::kHidden) hidden_.push_back(num_bytes_);
  ++num_bytes_;
  const int64_t first = num_bytes_ - static_cast<int64_t>(num_matched_);
  while (!hidden_.empty() && hidden_.front() < first) hidden_.pop_front();
  return num_matched_ == table_->stop.size();
}

}  // namespace reprise
