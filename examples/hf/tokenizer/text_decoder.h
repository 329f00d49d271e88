// Unstable: any version may change this header (docs/embedding.md).
//
// Streaming decoder: makes text from the contents of tokens, by the steps of a tokenizer.json's
// "decoder".
//
//   // Llama 2: "▁" is a space, bytes are characters, and the first space is dropped.
//   TextDecoder decoder({ReplaceStep{"▁", " "}, ByteTokenStep{}, StripStep{" ", 1}});
//   decoder.Push("▁Hi");     // "Hi"
//   decoder.Push("<0xC3>");  // nothing yet
//   decoder.Push("<0xA9>");  // nothing yet: more bytes may come
//   decoder.Push("▁x");      // "é x"
//   decoder.Finish();        // nothing
//
// The concatenated results are equal to what Hugging Face's decoder makes of all tokens at once,
// and always UTF-8. Each text is returned as soon as it is certain. Thread safety: none; one owner.

#ifndef REPRISE_HF_TOKENIZER_TEXT_DECODER_H_
#define REPRISE_HF_TOKENIZER_TEXT_DECODER_H_

#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "reprise/hf/tokenizer/text_normalizer.h"

namespace reprise {

// Runs of the tokens <0x00> to <0xFF> become the characters of their bytes, or, if a run is not all
// UTF-8, one U+FFFD per byte.
struct ByteTokenStep {};

// Tokens in the alphabet of byte_level.h become its bytes, other tokens the bytes of their content;
// invalid UTF-8 becomes U+FFFD. This must be the only step.
struct ByteLevelStep {};

// The symbol for a space becomes a space; in the first token, if `drops_first`, it is dropped.
struct MetaspaceStep {
  std::string symbol = {};
  bool drops_first = false;
};

// Removes `character` from the beginning, at most `count` times.
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

  // The text that one more token makes certain; often empty. REQUIRES: `token` is UTF-8.
  std::string Push(std::string_view token);

  // The pending text. Afterwards the decoder is as new.
  std::string Finish();

 private:
  class Stage;
  template <typename Step>
  class StageOf;

  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_TEXT_DECODER_H_
