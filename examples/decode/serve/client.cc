#include "examples/decode/serve/client.h"

#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "examples/decode/text/answer_text.h"

namespace reprise {

// The events of one request. Called on the engine's thread.
class ServeClient::Answer {
 public:
  Answer(ServeClient* client, int64_t line, std::string id, const Request& request,
         const StopTexts& stops)
      : client_(client), line_(line), id_(std::move(id)) {
    usage_.num_prompt_tokens =
        static_cast<int64_t>(request.prompt.size() + request.encoder_tokens.size());
    if (const Tokenizer* const tokenizer = client->context_->tokenizer) {
      text_.emplace(*tokenizer, request, stops);
    }
  }

  void Take(const TokenEvent& event) {
    const bool is_last = event.finish != FinishReason::kNone;
    if (event.token.has_value()) {
      ++usage_.num_generated_tokens;
      std::optional<std::string> text;
      if (text_.has_value()) {
        text = text_->Push(*event.token);
        if (is_last) *text += text_->Finish();
      }
      client_->Push(TokenEventLine(id_, event, text));
    }
    if (!is_last) return;
    std::string rest;  // held-back text if the last event has no token
    if (text_.has_value() && !event.token.has_value()) rest = text_->Finish();
    // First: the client may use the id again as soon as it reads the event.
    client_->Forget(id_);
    client_->Push(event.finish == FinishReason::kRefused ? ErrorEventLine(line_, id_, event.error)
                                                         : EndEventLine(id_, event, rest, usage_));
    client_->Ended();
  }

 private:
  ServeClient* client_;
  int64_t line_;
  std::string id_;
  ServeUsage usage_;
  std::optional<AnswerText> text_;
};

ServeClient::ServeClient(AsyncEngine* engine, const ServeContext* context, Outbox* out)
    : engine_(engine), context_(context), out_(out) {}

ServeClient::~ServeClient() {
  CancelAll();
  AwaitEnd();
}

void ServeClient::Take(const InputLine& line) {
  if (!line.text.has_value()) {
    Push(ErrorEventLine(line.number, "",
                        absl::InvalidArgumentError(absl::StrCat(
                            "line: expected at most ", kMaxLineBytes, " bytes, got more"))));
    return;
  }
  if (line.text->find_first_not_of(" \t\r") == std::string_view::npos) return;
  ServeLine parsed = ParseServeLine(*line.text, context_->defaults);
  if (!parsed.command.ok()) {
    Push(ErrorEventLine(line.number, parsed.id, parsed.command.status()));
  } else if (const auto* const request = std::get_if<ServeRequest>(&*parsed.command)) {
    Add(line.number, std::move(parsed.id), *request);
  } else {
    Cancel(parsed.id);
  }
}

void ServeClient::Add(int64_t line, std::string id, const ServeRequest& served) {
  const absl::Time now = absl::Now();
  absl::StatusOr<Request> request = context_->make_request(served);
  if (!request.ok()) {
    Push(ErrorEventLine(line, id, request.status()));
    return;
  }
  request->priority = served.priority;
  request->deadline = now + served.timeout;
  auto answer = std::make_shared<Answer>(this, line, id, *request, served.options.stops);
  absl::Status refused;
  {
    // The listener locks it too: it forgets the id after it is here.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (running_.contains(id)) {
      refused = absl::AlreadyExistsError(
          absl::StrCat("line: id: expected one that is not in use, got ", id));
    } else {
      const absl::StatusOr<SequenceId> added = engine_->Add(
          *std::move(request), [answer](const TokenEvent& event) { answer->Take(event); });
      if (added.ok()) {
        running_.emplace(id, *added);
        ++num_open_;
      }
      refused = added.status();
    }
  }
  if (!refused.ok()) Push(ErrorEventLine(line, id, refused));
}

void ServeClient::Cancel(const std::string& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = running_.find(id);
  if (it != running_.end()) engine_->Cancel(it->second);
}

void ServeClient::CancelAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, sequence] : running_) engine_->Cancel(sequence);
}

void ServeClient::AwaitEnd() {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [this] { return num_open_ == 0; });
}

void ServeClient::Push(const std::string& line) {
  if (!out_->Push(line)) CancelAll();
}

void ServeClient::Forget(const std::string& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  running_.erase(id);
}

void ServeClient::Ended() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--num_open_ == 0) idle_.notify_all();
}

}  // namespace reprise
