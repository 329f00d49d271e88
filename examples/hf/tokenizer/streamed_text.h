// The text that a StreamingDecoder must make of tokens, for tests: computed from all tokens at once.

#ifndef REPRISE_HF_TOKENIZER_STREAMED_TEXT_H_
#define REPRISE_HF_TOKENIZER_STREAMED_TEXT_H_

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "reprise/hf/tokenizer/tokenizer.h"

namespace reprise {

// Returns Decode() of `tokens`, in which the tokens <0xEF>, <0xBF> and <0xBD> (U+FFFD) replace each
// byte token outside of whole characters. Each run of byte tokens is then UTF-8.
std::string StreamedText(const Tokenizer& tokenizer, absl::Span<const int32_t> tokens,
                         SpecialTokenText special_tokens);

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_STREAMED_TEXT_H_
