#include "examples/llama/transcripts.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"

namespace reprise {

Transcripts::Transcripts(absl::Span<const Request> requests, const Tokenizer* tokenizer,
                         TextPrinter* printer)
    : printer_(printer) {
  for (const Request& request : requests) {
    const bool has_input = !request.encoder_tokens.empty();
    generations_.push_back({.prompt_tokens = has_input ? request.encoder_tokens : request.prompt});
    if (tokenizer == nullptr) continue;
    generations_.back().text.emplace();
    decoders_.emplace_back(*tokenizer, SpecialTokenText::kSkip);
  }
}

void Transcripts::Add(int request, const TokenEvent& event) {
  Generation& generation = generations_[request];
  CHECK(generation.finish == FinishReason::kNone) << "request " << request;
  const bool is_first = generation.tokens.empty();
  generation.tokens.push_back(event.token);
  generation.finish = event.finish;
  const bool is_finished = event.finish != FinishReason::kNone;
  std::string piece;
  if (generation.text.has_value()) {
    piece = decoders_[request].Push(event.token);
    if (is_finished) piece += decoders_[request].Finish();
    *generation.text += piece;
  } else {
    piece = absl::StrCat(is_first ? "" : " ", event.token);
  }
  if (printer_ == nullptr) return;
  printer_->Append(request, piece);
  if (is_finished) printer_->Finish(request);
}

}  // namespace reprise
