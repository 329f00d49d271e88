// Text from the contents of tokens as they come, by the steps of a tokenizer.json's "decoder".
//
//   // Llama 2: "▁" is a space, bytes are characters, and the first space goes.
//   TextDecoder decoder({ReplaceStep{"▁", " "}, ByteTokenStep{}, StripStep{" ", 1}});
//   decoder.Push("▁Hi");     // "Hi"
//   decoder.Push("<0xC3>");  // nothing yet
//   decoder.Push("<0xA9>");  // nothing yet: more bytes may come
//   decoder.Push("▁x");      // "é x"
//   decoder.Finish();        // nothing
//
// All that is returned, put together, is what Hugging Face's decoder makes of all tokens at once,
// and always UTF-8. Each text comes as early as it is certain. Thread safety: none; one owner.

#ifndef EXAMPLES_TOKENIZER_TEXT_DECODER_H_
#define EXAMPLES_TOKENIZER_TEXT_DECODER_H_

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "examples/tokenizer/text_normalizer.h"

namespace reprise {

// Runs of the tokens <0x00> to <0xFF> become the characters that their bytes are, or, if not all of
// a run is UTF-8, one U+FFFD a byte.
struct ByteTokenStep {};

// Tokens in the alphabet of byte_level.h become its bytes, others those of their content; what is
// no UTF-8 becomes U+FFFD. Where it is, it is the only step.
struct ByteLevelStep {};

// The symbol that stands for a space becomes one; in the first token, if `drops_first`, nothing.
struct MetaspaceStep {
  std::string symbol = {};
  bool drops_first = false;
};

// At most `count` times `character` at the beginning goes.
struct StripStep {
  enum Of { kText, kEachToken };
  std::string character = {};
  int count = 0;
  Of of = kText;
};

using DecoderStep =
    std::variant<ReplaceStep, ByteTokenStep, ByteLevelStep, MetaspaceStep, StripStep>;

class TextDecoder {
 public:
  explicit TextDecoder(absl::Span<const DecoderStep> steps);
  TextDecoder(TextDecoder&&);
  TextDecoder& operator=(TextDecoder&&);
  ~TextDecoder();

  // The text that one more token makes certain; often none. REQUIRES: `token` is UTF-8.
  std::string Push(std::string_view token);

  // The text that was waiting. The decoder is then as new.
  std::string Finish();

 private:
  class Stage;
  template <typename Step>
  class StageOf;

  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_TEXT_DECODER_H_
