#include "examples/decode/text/answer_text.h"

#include <algorithm>
#include <utility>

namespace reprise {

AnswerText::AnswerText(const Tokenizer& tokenizer, const Request& request, const StopTexts& stops)
    : tokenizer_(&tokenizer),
      decoder_(tokenizer, SpecialTokenText::kSkip),
      is_included_(stops.is_included) {
  decoder_.Begin(request.prompt);
  if (!request.forced_tokens.empty()) return;
  stop_tokens_ = request.stop_tokens;
  for (const std::string& stop : stops.texts) scans_.emplace_back(stop);
}

bool AnswerText::IsStopToken(int32_t token) const {
  return std::find(stop_tokens_.begin(), stop_tokens_.end(), token) != stop_tokens_.end();
}

std::optional<AnswerText::Match> AnswerText::Scan(std::string_view bytes, StopByte kind) {
  std::optional<Match> match;
  size_t end = held_.size();
  // All scans take the same byte; the longest stop that it completes counts.
  for (size_t i = 0; i < bytes.size() && !match.has_value(); ++i) {
    if (kind == StopByte::kVisible) ++end;
    for (StopScan& scan : scans_) {
      // Stops that do not name a special token are found across it.
      const bool is_named =
          kind == StopByte::kVisible || scan.stop().find(bytes) != std::string::npos;
      if (!is_named || !scan.Push(bytes[i], kind)) continue;
      const size_t begin = end - scan.num_held();
      if (!match.has_value() || begin < match->begin ||
          (begin == match->begin && scan.stop().size() > match->stop->size())) {
        match = {.begin = begin, .stop = &scan.stop()};
      }
    }
  }
  return match;
}

std::string AnswerText::Stop(const Match& match) {
  has_stopped_ = true;
  std::string returned = held_.substr(0, match.begin);
  if (is_included_) returned += *match.stop;
  returned.erase(0, num_returned_);
  held_.clear();
  num_returned_ = 0;
  return returned;
}

std::string AnswerText::Push(int32_t token) {
  if (has_stopped_) return "";
  const bool is_special = tokenizer_->IsSpecial(token);
  // A special token has no text, but a stop text may name it.
  if (!is_included_ && IsStopToken(token) && !is_special) return "";
  const std::string text = decoder_.Push(token);
  if (scans_.empty()) return text;
  const auto match = is_special ? Scan(*tokenizer_->TokenContent(token), StopByte::kHidden)
                                : Scan(text, StopByte::kVisible);
  held_ += text;
  if (match.has_value()) return Stop(*match);
  size_t num_kept = 0;
  size_t num_held = 0;
  for (const StopScan& scan : scans_) {
    num_kept = std::max(num_kept, scan.num_held());
    if (!is_included_ || scan.has_hidden()) num_held = std::max(num_held, scan.num_held());
  }
  const size_t end = std::max(num_returned_, held_.size() - num_held);
  std::string returned = held_.substr(num_returned_, end - num_returned_);
  const size_t num_dropped = held_.size() - num_kept;
  held_.erase(0, num_dropped);
  num_returned_ = end - num_dropped;
  return returned;
}

std::string AnswerText::Finish() {
  const std::string rest = decoder_.Finish();
  if (has_stopped_) return "";
  return (held_ + rest).substr(num_returned_);
}

}  // namespace reprise
