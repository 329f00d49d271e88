#include "examples/decode/transcripts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "nlohmann/json.hpp"

namespace reprise {
namespace {

nlohmann::ordered_json JsonOf(const TokenLogProbs& token) {
  nlohmann::ordered_json entry = {
      {"log_prob", token.log_prob}, {"rank", token.rank}, {"top", nlohmann::ordered_json::array()}};
  for (const auto& [id, log_prob] : token.top) {
    entry["top"].push_back(nlohmann::ordered_json::array({id, log_prob}));
  }
  return entry;
}

}  // namespace

std::string ToJson(const TokenLogProbs& token) { return JsonOf(token).dump(); }

std::string ToJson(const Generation& generation) {
  nlohmann::ordered_json json;
  json["prompt_tokens"] = generation.prompt_tokens;
  json["tokens"] = generation.tokens;
  json["text"] = nullptr;
  if (generation.text.has_value()) json["text"] = *generation.text;
  json["finish_reason"] = std::string(FinishReasonName(generation.finish));
  for (const TokenLogProbs& token : generation.log_probs) {
    json["log_probs"].push_back(JsonOf(token));
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

TextPrinter::TextPrinter(std::ostream& out, std::vector<std::string> headings) : out_(out) {
  for (std::string& heading : headings) texts_.push_back({.heading = std::move(heading)});
}

void TextPrinter::Append(int prompt, std::string_view piece) {
  CHECK_LT(static_cast<size_t>(prompt), texts_.size());
  Text& text = texts_[prompt];
  CHECK(!text.is_finished) << "prompt " << prompt;
  StartFirst();
  if (static_cast<size_t>(prompt) == current_) {
    out_ << piece << std::flush;
  } else {
    text.kept += piece;
  }
}

void TextPrinter::Finish(int prompt) {
  CHECK_LT(static_cast<size_t>(prompt), texts_.size());
  CHECK(!texts_[prompt].is_finished) << "prompt " << prompt;
  StartFirst();
  texts_[prompt].is_finished = true;
  while (current_ < texts_.size() && texts_[current_].is_finished) {
    out_ << '\n';
    if (++current_ < texts_.size()) Start(texts_[current_]);
  }
  out_.flush();
}

void TextPrinter::StartFirst() {
  if (!std::exchange(is_started_, true)) Start(texts_.front());
}

void TextPrinter::Start(Text& text) {
  if (texts_.size() > 1) out_ << "--- " << text.heading << '\n';
  out_ << std::exchange(text.kept, {});
}

Transcripts::Transcripts(absl::Span<const Request> requests, const Tokenizer* tokenizer,
                         const StopTexts& stops, TextPrinter* printer)
    : printer_(printer) {
  for (const Request& request : requests) {
    const bool has_input = !request.encoder_tokens.empty();
    generations_.push_back({.prompt_tokens = has_input ? request.encoder_tokens : request.prompt});
    if (tokenizer == nullptr) continue;
    generations_.back().text.emplace();
    texts_.emplace_back(*tokenizer, request, stops);
  }
}

void Transcripts::Add(int request, const TokenEvent& event) {
  Generation& generation = generations_[request];
  CHECK(generation.finish == FinishReason::kNone) << "request " << request;
  generation.finish = event.finish;
  const bool is_finished = event.finish != FinishReason::kNone;
  if (event.log_probs.has_value()) generation.log_probs.push_back(*event.log_probs);
  if (event.token.has_value()) {
    const bool is_first = generation.tokens.empty();
    generation.tokens.push_back(*event.token);
    Append(request, generation.text.has_value() ? texts_[request].Push(*event.token)
                                                : absl::StrCat(is_first ? "" : " ", *event.token));
  }
  if (!is_finished) return;
  if (generation.text.has_value()) Append(request, texts_[request].Finish());
  if (printer_ != nullptr) printer_->Finish(request);
}

void Transcripts::Append(int request, std::string_view piece) {
  Generation& generation = generations_[request];
  if (generation.text.has_value()) *generation.text += piece;
  if (printer_ != nullptr) printer_->Append(request, piece);
}

void Transcripts::Finish() {
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (generations_[i].finish != FinishReason::kNone) continue;
    const std::string rest = texts_[i].Finish();
    // A run that fails at once prints nothing, no heading either.
    if (!rest.empty()) Append(static_cast<int>(i), rest);
  }
}

}  // namespace reprise
