#include "examples/decode/chat/chat_session.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {

ChatSession::ChatSession(Engine* engine, const Tokenizer* tokenizer, ChatSetup setup)
    : engine_(engine), tokenizer_(tokenizer), setup_(std::move(setup)) {
  if (const std::optional<int32_t> end = tokenizer->FindToken(setup_.chat.EndMarker())) {
    setup_.request.stop_tokens.push_back(*end);
    setup_.end_tokens.insert(setup_.end_tokens.begin(), *end);
  }
}

absl::StatusOr<std::vector<int32_t>> ChatSession::WithTurn(std::string_view text) const {
  const bool is_first = tokens_.empty();
  const std::string turn = (is_first ? setup_.chat.Begin() : setup_.chat.AfterAnswer()) +
                           setup_.chat.UserTurn(text, setup_.system, is_first);
  REPRISE_ASSIGN_OR_RETURN(const std::vector<int32_t> added,
                           tokenizer_->Encode(turn, {.adds_template = false}));
  std::vector<int32_t> tokens = tokens_;
  tokens.insert(tokens.end(), added.begin(), added.end());
  if (static_cast<int>(tokens.size()) < setup_.max_seq_len) return tokens;
  return absl::ResourceExhaustedError(
      absl::StrCat("the conversation is too long: expected fewer than ", setup_.max_seq_len,
                   " tokens, got ", tokens.size(), "; /clear begins another"));
}

absl::StatusOr<bool> ChatSession::TakeEvents(AnswerText& text, ChatAnswer& answer, OnPiece on_piece,
                                             bool& goes_on) {
  for (const TokenEvent& event : events_) {
    REPRISE_RETURN_IF_ERROR(event.error);
    answer.finish = event.finish;
    answer.num_cached_tokens = event.num_cached_tokens;
    const bool is_last = event.finish != FinishReason::kNone;
    std::string piece;
    if (event.token.has_value()) {
      answer_.push_back(*event.token);
      piece = text.Push(*event.token);
    }
    if (is_last) piece += text.Finish();
    goes_on &= on_piece(piece);
    if (is_last) return true;
  }
  return false;
}

absl::Status ChatSession::Generate(SequenceId id, AnswerText& text, ChatAnswer& answer,
                                   OnPiece on_piece) {
  bool goes_on = true;
  bool is_cancelled = false;
  bool has_ended = false;
  while (!has_ended) {
    events_.clear();
    if (!goes_on && !is_cancelled) {
      is_cancelled = true;
      REPRISE_RETURN_IF_ERROR(engine_->Cancel(id, events_));
    } else {
      REPRISE_RETURN_IF_ERROR(engine_->Step(events_));
      if (events_.empty()) goes_on &= on_piece("");
    }
    REPRISE_ASSIGN_OR_RETURN(has_ended, TakeEvents(text, answer, on_piece, goes_on));
  }
  return absl::OkStatus();
}

absl::StatusOr<ChatAnswer> ChatSession::Ask(std::string_view text, OnPiece on_piece) {
  const auto begin = std::chrono::steady_clock::now();
  REPRISE_ASSIGN_OR_RETURN(std::vector<int32_t> prompt, WithTurn(text));
  Request request = setup_.request;
  request.prompt = prompt;
  ChatAnswer answer = {.num_prompt_tokens = static_cast<int64_t>(prompt.size())};
  answer_.clear();
  // Without the prompt: an answer begins a turn, so its first space separates it from nothing.
  AnswerText answer_text(*tokenizer_, setup_.request, setup_.stops);
  REPRISE_ASSIGN_OR_RETURN(const SequenceId id, engine_->Add(std::move(request)));
  if (absl::Status status = Generate(id, answer_text, answer, on_piece); !status.ok()) {
    on_piece(answer_text.Finish());  // the text that was held back
    return status;
  }
  while (engine_->has_work()) {  // steps in flight
    events_.clear();
    REPRISE_RETURN_IF_ERROR(engine_->Step(events_));
  }
  answer.num_tokens = static_cast<int64_t>(answer_.size());
  tokens_ = std::move(prompt);
  tokens_.insert(tokens_.end(), answer_.begin(), answer_.end());
  const std::vector<int32_t>& ends = setup_.end_tokens;
  const bool is_ended =
      !answer_.empty() && std::find(ends.begin(), ends.end(), answer_.back()) != ends.end();
  if (!is_ended && !ends.empty()) tokens_.push_back(ends.front());
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return answer;
}

}  // namespace reprise
