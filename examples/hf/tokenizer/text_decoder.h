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
// and always UTF-8. Each text is returned as soon as it is certain. A copy continues on its own.
// Thread safety: none; one owner.

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
  TextDecoder(const TextDecoder& other);
  TextDecoder& operator=(const TextDecoder& other);
  TextDecoder(TextDecoder&&);
  TextDecoder& operator=(TextDecoder&&);
  ~TextDecoder();

  // The text that one more token makes certain; often empty. REQUIRES: `token` is UTF-8.
  std::string Push(std::string_view token);

  // The pending text. Afterwards the decoder is as new.
  std::string Finish();

  // Returns what Finish() would return, except the U+FFFD of a character that further tokens can
  // complete, and changes nothing. Cost: linear in the pending text; O(1) if none is pending.
  std::string Pending() const;

  // Marks the end of a text that is known, such as a prompt: Push() returns only text that follows
  // what Finish() would return now. A character that the known text begins and later tokens
  // complete is returned whole. If later tokens do not complete it, its U+FFFD belongs to the known
  // text. If later bytes spoil a run that began in the known text, only those bytes become U+FFFD.
  void MarkKnown();

 private:
  class Stage;
  template <typename Step>
  class StageOf;

  // Passes the text that `flush` takes out of each stage through the stages after it.
  template <typename Flush>
  static std::string FlushAll(absl::Span<const std::unique_ptr<Stage>> stages, Flush flush);

  std::vector<std::unique_ptr<Stage>> stages_;
};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_TEXT_DECODER_H_
