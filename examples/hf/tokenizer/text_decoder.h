// Unstable: any version may change this header (docs/embedding.md).
//
// Streaming decoder: makes text from the contents of tokens, by the steps of a tokenizer.json's
// "decoder".
//
//   // Llama 2: "▁" is a space, bytes are characters, and the first space is dropped.
//   TextDecoder decoder({ReplaceStep{"▁", " "}, ByteTokenStep{}, StripStep{" ", 1}});
//   decoder.Push("▁Hi");     // "Hi"
//   decoder.Push("<0xC3>");  // nothing yet: half a character
//   decoder.Push("<0xA9>");  // "é"
//   decoder.Push("▁x");      // " x"
//   decoder.Finish();        // nothing
//
// Each text is returned as soon as it is certain, and is UTF-8. The concatenated results equal the
// text that Hugging Face's decoder makes of all tokens at once, except for invalid bytes
// (ByteTokenStep). A copy continues on its own. Thread safety: none; one owner.

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

// Runs of the tokens <0x00> to <0xFF> become the characters of their bytes.
struct ByteTokenStep {
  enum Runs {
    // Returns each character as soon as it is whole. Each byte outside of whole characters becomes
    // one U+FFFD. REQUIRES: no later step, except StripStep::kText, as other steps act on tokens.
    kByCharacter,
    // Returns a run at its end, as one token. If a run is not all UTF-8, each of its bytes becomes
    // one U+FFFD: Hugging Face's rule.
    kWhole
  };
  Runs runs = kByCharacter;
};

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
  TextDecoder(const TextDecoder& other);
  TextDecoder& operator=(const TextDecoder& other);
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
