// Text from tokens as they are made, without ever showing a part of a character.
//
//   StreamingDecoder decoder(tokenizer, SpecialTokenText::kSkip);
//   for (...) std::cout << decoder.Push(token) << std::flush;
//   std::cout << decoder.Finish();
//
// All that is returned, put together, is Tokenizer::Decode() of all tokens.
// Thread safety: none; one owner. The tokenizer must outlive it.

#ifndef EXAMPLES_LLAMA_STREAMING_DECODER_H_
#define EXAMPLES_LLAMA_STREAMING_DECODER_H_

#include <cstdint>
#include <string>

#include "examples/llama/tokenizer.h"

namespace reprise {

class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, SpecialTokenText special_tokens);

  // The text that is settled by one more token, often none: bytes that may be the beginning of a
  // character wait for the rest of it. Bytes that cannot become one are U+FFFD at once. Always
  // UTF-8.
  std::string Push(int32_t token);

  // The text that was waiting: nothing, or U+FFFD for a character that was not finished. The
  // decoder is then as new.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokenText special_tokens_;
  std::string waiting_;  // at most 3 bytes
};

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_STREAMING_DECODER_H_
