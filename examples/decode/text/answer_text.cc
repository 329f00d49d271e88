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

void AnswerText::MarkSpecial(int32_t token) {
  if (scans_.empty() || !tokenizer_->IsSpecial(token)) return;
  const std::string_view content = *tokenizer_->TokenContent(token);
  for (const StopScan& scan : scans_) {
    if (content.empty() || scan.stop().find(content) == std::string::npos) continue;
    marks_.push_back({.offset = ahead_ ? ahead_->text.size() : 0, .content = content});
    return;
  }
}

std::optional<AnswerText::Match> AnswerText::Scan(std::string_view text, size_t first,
                                                  size_t first_mark, size_t begin,
                                                  std::vector<StopScan>& scans) const {
  std::optional<Match> match;
  // All scans take the same byte; the longest stop that it completes counts.
  const auto push = [&](char byte, StopByte kind, std::string_view content, size_t end) {
    for (StopScan& scan : scans) {
      const bool is_named =
          kind == StopByte::kVisible || scan.stop().find(content) != std::string::npos;
      if (!is_named || !scan.Push(byte, kind)) continue;
      const size_t stop_begin = end - scan.num_held();
      if (!match.has_value() || stop_begin < match->begin ||
          (stop_begin == match->begin && scan.stop().size() > match->stop->size())) {
        match = {.begin = stop_begin, .stop = &scan.stop()};
      }
    }
    return match.has_value();
  };
  auto mark = marks_.begin() + static_cast<int64_t>(first_mark);
  for (size_t i = first; i <= text.size(); ++i) {
    for (; mark != marks_.end() && (mark->offset <= i || i == text.size()); ++mark) {
      for (const char byte : mark->content) {
        if (push(byte, StopByte::kHidden, mark->content, begin + i)) return match;
      }
    }
    if (i < text.size() && push(text[i], StopByte::kVisible, {}, begin + i + 1)) return match;
  }
  return std::nullopt;
}

std::optional<AnswerText::Match> AnswerText::ScanPending(const std::string& pending) {
  if (pending.empty() && marks_.empty()) {
    ahead_.reset();
    return std::nullopt;
  }
  // A byte that is not UTF-8 changes all of the pending text.
  if (!ahead_ || !pending.starts_with(ahead_->text)) ahead_ = Ahead{.scans = scans_};
  const auto match =
      Scan(pending, ahead_->text.size(), ahead_->num_marks, held_.size(), ahead_->scans);
  ahead_->text = pending;
  ahead_->num_marks = marks_.size();
  return match;
}

std::string AnswerText::Stop(const std::string& text, const Match& match) {
  has_stopped_ = true;
  std::string returned = text.substr(0, match.begin);
  if (is_included_) returned += *match.stop;
  returned.erase(0, num_returned_);
  held_.clear();
  num_returned_ = 0;
  return returned;
}

std::string AnswerText::Push(int32_t token) {
  if (has_stopped_) return "";
  // A special token has no text, but a stop text may name it.
  if (!is_included_ && IsStopToken(token) && !tokenizer_->IsSpecial(token)) return "";
  MarkSpecial(token);
  const size_t begin = held_.size();
  const std::string settled = decoder_.Push(token);
  held_ += settled;
  if (scans_.empty()) return std::exchange(held_, {});
  if (!settled.empty()) {
    if (const auto match = Scan(settled, 0, 0, begin, scans_)) return Stop(held_, *match);
    marks_.clear();
    ahead_.reset();
  }
  const std::string pending = decoder_.Pending();
  if (const auto match = ScanPending(pending)) return Stop(held_ + pending, *match);
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
