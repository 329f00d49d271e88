// Text from tokens as they are made, without ever showing a part of a character.
//
//   StreamingDecoder decoder(tokenizer, SpecialTokenText::kSkip);
//   for (...) std::cout << decoder.Push(token) << std::flush;
//   std::cout << decoder.Finish();
//
// All that is returned, put together, is Tokenizer::Decode() of all tokens.
// Thread safety: none; one owner. The tokenizer must outlive it.

#ifndef EXAMPLES_TOKENIZER_STREAMING_DECODER_H_
#define EXAMPLES_TOKENIZER_STREAMING_DECODER_H_

#include <cstdint>
#include <string>

#include "examples/tokenizer/text_decoder.h"
#include "examples/tokenizer/tokenizer.h"

namespace reprise {

class StreamingDecoder {
 public:
  StreamingDecoder(const Tokenizer& tokenizer, SpecialTokenText special_tokens);

  // The text that is settled by one more token, often none: what later tokens may change waits. Of
  // byte-level tokens that is the beginning of a character; bytes that cannot become one are U+FFFD
  // at once. Of tokens <0x00> to <0xFF> it is all bytes up to the next token that is none: mostly a
  // character or a word. Always UTF-8.
  std::string Push(int32_t token);

  // The text that was waiting; U+FFFD for a character that was not finished. The decoder is then as
  // new.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  SpecialTokenText special_tokens_;
  TextDecoder decoder_;
};

}  // namespace reprise

#endif  // EXAMPLES_TOKENIZER_STREAMING_DECODER_H_
