// Ends a sequence at one of several texts, wherever tokens begin and end.
//
//   request.new_stop_matcher = [text = AnswerText(tokenizer, request, stops)] {
//     return std::make_unique<StopText>(text);
//   };
//
// Thread safety: none; one owner.

#ifndef EXAMPLES_DECODE_TEXT_STOP_TEXT_H_
#define EXAMPLES_DECODE_TEXT_STOP_TEXT_H_

#include <cstdint>
#include <utility>

#include "examples/decode/text/answer_text.h"
#include "reprise/engine/request.h"

namespace reprise {

class StopText : public StopMatcher {
 public:
  // REQUIRES: no token has been pushed to `text`.
  explicit StopText(AnswerText text) : text_(std::move(text)) {}

  // Returns true if the text contains a stop with this token. The beginning of a character is no text.
  bool Ends(int32_t token) override {
    text_.Push(token);
    return text_.has_stopped();
  }

 private:
  AnswerText text_;
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_TEXT_STOP_TEXT_H_
