// Ends a sequence behind one of several texts, wherever tokens begin and end.
//
//   request.new_stop_matcher = [&tokenizer, stops] {
//     return std::make_unique<StopText>(tokenizer, stops);
//   };
//
// Thread safety: none; one owner.

#ifndef EXAMPLES_DECODE_STOP_TEXT_H_
#define EXAMPLES_DECODE_STOP_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "reprise/engine/request.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {

class StopText : public StopMatcher {
 public:
  // The tokenizer must outlive the matcher. Special tokens have no text. REQUIRES: no stop is empty.
  StopText(const Tokenizer& tokenizer, std::vector<std::string> stops);

  // Whether the text contains a stop. Text that later tokens may change does not count yet.
  bool Ends(int32_t token) override;

 private:
  StreamingDecoder decoder_;
  std::vector<std::string> stops_;
  size_t longest_ = 0;  // bytes of a stop
  std::string tail_;    // the end of the text so far: where a stop may have begun
};

}  // namespace reprise

#endif  // EXAMPLES_DECODE_STOP_TEXT_H_
