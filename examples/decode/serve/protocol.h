// The lines of decode serve: requests and cancels in, events out. docs/serve.md has the fields.
//
//   const ServeLine line = ParseServeLine(text, defaults);
//   if (!line.command.ok()) out.Push(ErrorEvent(number, line.id, line.command.status()));
//
// In:
//
//   {"id":"a","prompt":"hacker\n","max_new_tokens":20,"temperature":0.8,"seed":5}
//   {"cancel":"a"}
//
// Out:
//
//   {"event":"token","id":"a","token":16,"text":"n."}
//   {"event":"end","id":"a","finish_reason":"stop",
//    "usage":{"prompt_tokens":3,"cached_tokens":0,"generated_tokens":11}}      in one line
//   {"event":"error","line":3,"error":"not valid JSON at line 1, column 1: expected a value, got an
//   unknown word"}
//
// Thread safety: pure functions.

#ifndef EXAMPLES_DECODE_SERVE_PROTOCOL_H_
#define EXAMPLES_DECODE_SERVE_PROTOCOL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "examples/decode/options.h"
#include "examples/decode/prompt.h"
#include "reprise/engine/request.h"

namespace reprise {

// The longest line that is read.
inline constexpr int64_t kMaxLineBytes = int64_t{4} << 20;

struct ServeRequest {
  Prompt prompt = {};
  std::optional<Prompt> predicted = {};  // what the answer will probably be
  // The program's, with those of the line in their places.
  DecodeOptions options = {};
  int priority = 0;
  absl::Duration timeout = absl::InfiniteDuration();
};

struct ServeCancel {};

struct ServeLine {
  // As JSON: 7, or "a". Empty: the line names none.
  std::string id = {};
  absl::StatusOr<std::variant<ServeRequest, ServeCancel>> command;
};

// Errors, of the command: InvalidArgument for what is no JSON object, is not UTF-8, has no id or
// prompt, an unknown field, or a value of another type or out of range.
ServeLine ParseServeLine(std::string_view line, const DecodeOptions& defaults);

// Events, each a line without its end. Text that is not UTF-8 becomes U+FFFD. `id`: as JSON.

// `text`: what the token makes certain of the answer (answer_text.h); nullopt: there is no
// tokenizer.
std::string TokenEventLine(std::string_view id, const TokenEvent& event,
                           const std::optional<std::string>& text);

struct ServeUsage {
  int64_t num_prompt_tokens = 0;
  int64_t num_generated_tokens = 0;
};
// `text`: the rest of the answer, if the event has no token; the line has no such field if it is
// empty. Also of the usage: event.num_cached_tokens. REQUIRES: event.finish is neither kNone nor
// kRefused.
std::string EndEventLine(std::string_view id, const TokenEvent& event, std::string_view text,
                         const ServeUsage& usage);

// A line that was refused. `id` may be empty.
std::string ErrorEventLine(int64_t line, std::string_view id, const absl::Status& error);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_SERVE_PROTOCOL_H_
