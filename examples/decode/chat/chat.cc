#include "examples/decode/chat/chat.h"

#include <signal.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "examples/decode/chat/chat_session.h"
#include "examples/decode/chat/chat_template.h"
#include "examples/decode/chat/input_lines.h"
#include "examples/decode/chat/input_wait.h"
#include "examples/decode/chat/line_editor.h"
#include "examples/decode/loaded_model.h"
#include "examples/decode/requests.h"
#include "examples/decode/signal_event.h"
#include "reprise/base/status_macros.h"
#include "reprise/engine/create_engine.h"
#include "reprise/hf/tokenizer/tokenizer.h"
#include "reprise/models/model_folder.h"

namespace reprise {
namespace {

constexpr char kHelp[] =
    "/clear begins another conversation; /exit or Ctrl-D ends the program; Ctrl-C ends an answer\n";

// The text of the tokens that `decode run` puts before a text.
std::string BeginOfText(const Tokenizer& tokenizer) {
  std::string text;
  for (const int32_t token : tokenizer.text_template().prefix) {
    text += tokenizer.TokenContent(token).value_or("");
  }
  return text;
}

absl::StatusOr<ChatSetup> SetupOf(const DecodeOptions& options, const ModelFolder& folder) {
  if (!folder.tokenizer.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat takes texts, but ", folder.WhyNoTokenizer()));
  }
  if (std::holds_alternative<BartConfig>(folder.config)) {
    return absl::InvalidArgumentError(
        absl::StrCat("chat: expected a model without an encoder, got ", folder.path));
  }
  ChatSetup setup = {.system = options.system};
  std::optional<ChatFormat> format;
  if (options.chat_template.has_value()) {
    REPRISE_ASSIGN_OR_RETURN(format, ChatFormatOfName(*options.chat_template));
  }
  REPRISE_ASSIGN_OR_RETURN(setup.chat, ChatTemplateOf(folder.path, format));
  if (setup.chat.format == ChatFormat::kNone) setup.chat.bos = BeginOfText(*folder.tokenizer);
  const Prompt none = {.content = TokenList()};  // each turn brings its own
  REPRISE_ASSIGN_OR_RETURN(std::vector<Request> requests,
                           MakeRequests({&none, 1}, options, folder));
  setup.request = std::move(requests.front());
  setup.stops = options.stops;
  if (options.stop == StopChoice::kAtEndOfText) setup.end_tokens = folder.eos_token_ids();
  return setup;
}

std::string StatsLine(const ChatAnswer& answer) {
  return absl::StrFormat(
      "[%d tokens in %.2f s, %.1f tokens/s; %d of %d prompt tokens from the cache]\n",
      answer.num_tokens, answer.seconds,
      answer.seconds > 0 ? static_cast<double>(answer.num_tokens) / answer.seconds : 0.0,
      answer.num_cached_tokens, answer.num_prompt_tokens);
}

// idle: called while the user thinks.
absl::Status Converse(const DecodeOptions& options, const ChatStreams& streams,
                      const IdleCall& idle, ChatSession& session) {
  SignalEvent interrupt({SIGINT});
  InputLines lines(streams.in, interrupt, idle);
  std::unique_ptr<LineEditor> editor;
  if (streams.terminal != nullptr) {
    editor = LineEditor::Create(streams.in, streams.terminal, interrupt, idle);
  }
  const auto next_line = [&] {
    if (editor != nullptr) return editor->Next();
    streams.err << "> " << std::flush;
    return lines.Next();
  };
  while (true) {
    const InputLines::Result line = next_line();
    if (line.kind == InputLines::Kind::kFailed) {
      streams.err << '\n' << std::flush;
      return line.error;
    }
    if (line.kind == InputLines::Kind::kEnd || line.text == "/exit") break;
    if (line.kind == InputLines::Kind::kInterrupted) {
      streams.err << '\n';
      continue;
    }
    if (line.text == "/clear") {
      session.Clear();
      continue;
    }
    if (line.text == "/help") {
      streams.err << kHelp;
      continue;
    }
    if (line.text.empty()) continue;
    const absl::StatusOr<ChatAnswer> answer = session.Ask(line.text, [&](std::string_view piece) {
      streams.out << piece << std::flush;
      return !interrupt.Take();
    });
    streams.out << '\n' << std::flush;
    if (!answer.ok()) {
      // What the user says may be wrong; a device that has failed serves nothing any more.
      if (!absl::IsInvalidArgument(answer.status()) &&
          !absl::IsResourceExhausted(answer.status())) {
        return answer.status();
      }
      streams.err << answer.status().message() << '\n';
      continue;
    }
    if (!streams.out.good()) return absl::InternalError("standard output could not be written");
    if (options.shows_stats) streams.err << StatsLine(*answer);
  }
  streams.err << '\n' << std::flush;
  return absl::OkStatus();
}

}  // namespace

absl::Status RunChat(const DecodeOptions& options, const ChatStreams& streams, RankOfRun rank) {
  ChatSetup setup;
  const auto options_of = [&](const ModelFolder& folder) -> absl::StatusOr<ModelEngineOptions> {
    REPRISE_ASSIGN_OR_RETURN(setup, SetupOf(options, folder));
    DecodeOptions one = options;
    one.engine.runner.max_num_seqs = 1;
    ModelEngineOptions engine = ServingEngineOptions(one, folder.max_seq_len());
    setup.max_seq_len = *engine.runner.max_seq_len;
    return engine;
  };
  DecodeModels loaded;
  std::unique_ptr<Engine> engine;
  {
    ProgressLine progress(streams.err, streams.progress);
    REPRISE_ASSIGN_OR_RETURN(loaded, DecodeModels::Load(options, rank, progress, options_of));
    if (rank.follows()) return loaded.Follow();
    REPRISE_ASSIGN_OR_RETURN(engine, loaded.MakeEngine());
  }
  ChatSession session(engine.get(), &*loaded.folder->tokenizer, std::move(setup));
  IdleCall idle;
  if (rank.grid != nullptr) {  // the other ranks wait for the next step
    idle = {.call = [&] { return engine->Idle(); }, .interval = IdleInterval(options)};
  }
  return Converse(options, streams, idle, session);
}

}  // namespace reprise
