// The text of a request's answer as it is returned: what follows the prompt, up to the first stop.
//
//   AnswerText text(tokenizer, request, {.texts = {"END"}});
//   text.Push(token);       // of the token " is E": " is ", since the "E" may begin the stop
//   if (text.has_stopped()) ...
//   text.Finish();          // however the request ends: the text that was held back
//
// 1. The joined results are the text that StreamingDecoder makes of the tokens after the prompt, cut
//    where the stop begins (StopTexts::is_included: where it ends).
// 2. The request ends with the first token that completes a stop. Of several stops in one token the
//    first to be complete counts; if two end with the same byte, the longer one.
// 3. A stop text may name special tokens, "<|eot_id|>" or "<|im_end|>\n". It is looked for in the
//    text with these tokens written out. The returned text has no special tokens. A special token
//    within a character is looked for before the character.
//
// Thread safety: none; one owner. A copy continues on its own. The tokenizer must outlive the text.

#ifndef EXAMPLES_DECODE_TEXT_ANSWER_TEXT_H_
#define EXAMPLES_DECODE_TEXT_ANSWER_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "examples/decode/text/stop_scan.h"
#include "reprise/engine/request.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {

// Texts that end an answer.
struct StopTexts {
  std::vector<std::string> texts = {};  // none is empty
  // Whether the answer contains the stop text that ended it. Text after the stop is never returned.
  bool is_included = false;

  friend bool operator==(const StopTexts&, const StopTexts&) = default;
};

class AnswerText {
 public:
  // Reads the prompt, the stop tokens and the forced tokens of `request`. The text of a stop token
  // is returned only if stops are included. Forced tokens have no stops. Cost: linear in the
  // prompt.
  AnswerText(const Tokenizer& tokenizer, const Request& request, const StopTexts& stops);

  // Takes the next token. Returns text that neither later tokens nor a stop can change, often
  // empty. After a stop: no text.
  std::string Push(int32_t token);

  // The text contains a stop text.
  bool has_stopped() const { return has_stopped_; }

  // Returns the rest of the text; U+FFFD for an unfinished character. REQUIRES: the last call.
  std::string Finish();

 private:
  // A stop that has been found.
  struct Match {
    size_t begin = 0;  // offset in held_
    const std::string* stop = nullptr;
  };

  bool IsStopToken(int32_t token) const;
  // Passes `bytes` to scans_: the content of a special token, or text that will follow held_.
  std::optional<Match> Scan(std::string_view bytes, StopByte kind);
  std::string Stop(const Match& match);

  const Tokenizer* tokenizer_;
  StreamingDecoder decoder_;
  std::vector<int32_t> stop_tokens_;
  bool is_included_;
  std::vector<StopScan> scans_;  // one per stop text, of the text that the decoder has returned
  std::string held_;             // the end of that text, from the first byte that may be in a stop
  size_t num_returned_ = 0;      // bytes of held_ that were returned: if stops are included
  bool has_stopped_ = false;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_TEXT_ANSWER_TEXT_H_
