#include "examples/decode/stop_text.h"

#include <algorithm>
#include <utility>

namespace reprise {

StopText::StopText(const Tokenizer& tokenizer, std::vector<std::string> stops)
    : decoder_(tokenizer, SpecialTokenText::kSkip), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

bool StopText::Ends(int32_t token) {
  tail_ += decoder_.Push(token);
  for (const std::string& stop : stops_) {
    if (tail_.find(stop) != std::string::npos) return true;
  }
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - longest_ + 1);
  return false;
}

}  // namespace reprise
