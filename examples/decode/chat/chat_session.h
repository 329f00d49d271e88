// A conversation with a model: each turn is appended to the tokens of those before it, so that
// their keys are found in the cache.
//
//   ChatSession session(engine.get(), &tokenizer, {.chat = chat, .max_seq_len = 8192});
//   REPRISE_ASSIGN_OR_RETURN(ChatAnswer answer, session.Ask("Hi", [&](std::string_view piece) {
//     std::cout << piece << std::flush;
//     return !interrupt.Take();
//   }));
//
// Thread safety: none.

#ifndef EXAMPLES_DECODE_CHAT_CHAT_SESSION_H_
#define EXAMPLES_DECODE_CHAT_CHAT_SESSION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/decode/chat/chat_template.h"
#include "examples/decode/text/answer_text.h"
#include "reprise/base/ids.h"
#include "reprise/engine/engine.h"
#include "reprise/engine/request.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {

struct ChatSetup {
  ChatTemplate chat = {};
  std::string system = {};
  // Its prompt is the conversation's. The end marker of the template is added to its stop tokens.
  Request request = {};
  // Tokens that end a turn in addition to the end marker. If an answer has ended otherwise, the end
  // marker or else the first of these tokens is appended to it.
  std::vector<int32_t> end_tokens = {};
  StopTexts stops = {};  // the same as in request.new_stop_matcher
  int max_seq_len = 0;   // of the engine
};

struct ChatAnswer {
  FinishReason finish = FinishReason::kNone;  // kCancelled: on_piece ended it
  int64_t num_prompt_tokens = 0;              // of the whole conversation before it
  int64_t num_cached_tokens = 0;              // of those, found in the cache
  int64_t num_tokens = 0;                     // of the answer
  double seconds = 0;
};

class ChatSession {
 public:
  // Gets each piece of the answer up to a stop text (answer_text.h), and an empty one for steps
  // without text. False ends the answer; it still gets the text that was held back.
  using OnPiece = absl::FunctionRef<bool(std::string_view piece)>;

  // Both must outlive the session; the engine serves nothing else meanwhile.
  ChatSession(Engine* engine, const Tokenizer* tokenizer, ChatSetup setup);

  // Errors, with the conversation as it was: InvalidArgument for a text that is not UTF-8 or cannot
  // be encoded; ResourceExhausted if no token of an answer fits behind it into max_seq_len. Why the
  // engine failed.
  absl::StatusOr<ChatAnswer> Ask(std::string_view text, OnPiece on_piece);

  // Begins another conversation.
  void Clear() { tokens_.clear(); }

 private:
  // The conversation with the user's next turn.
  absl::StatusOr<std::vector<int32_t>> WithTurn(std::string_view text) const;
  // Runs steps until the sequence has ended.
  absl::Status Generate(SequenceId id, AnswerText& text, ChatAnswer& answer, OnPiece on_piece);
  // Takes the answer's events; true: it has ended.
  absl::StatusOr<bool> TakeEvents(AnswerText& text, ChatAnswer& answer, OnPiece on_piece,
                                  bool& goes_on);

  Engine* const engine_;
  const Tokenizer* const tokenizer_;
  ChatSetup setup_;
  std::vector<int32_t> tokens_;  // of all turns; the last answer with its end. Empty: none yet
  std::vector<int32_t> answer_;
  std::vector<TokenEvent> events_;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_CHAT_CHAT_SESSION_H_
