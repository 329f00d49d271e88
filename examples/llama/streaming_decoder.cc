#include "examples/llama/streaming_decoder.h"

#include <string_view>
#include <utility>

#include "examples/llama/utf8.h"

namespace reprise {

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, SpecialTokenText special_tokens)
    : tokenizer_(&tokenizer), special_tokens_(special_tokens) {}

std::string StreamingDecoder::Push(int32_t token) {
  if (special_tokens_ == SpecialTokenText::kSkip && tokenizer_->IsSpecial(token)) return "";
  waiting_ += tokenizer_->TokenBytes(token).value_or(std::string_view());
  const int64_t settled = SettledUtf8Prefix(waiting_);
  std::string text = ReplaceInvalidUtf8(std::string_view(waiting_).substr(0, settled));
  waiting_.erase(0, settled);
  return text;
}

std::string StreamingDecoder::Finish() { return ReplaceInvalidUtf8(std::exchange(waiting_, "")); }

}  // namespace reprise
