#include "examples/tokenizer/streaming_decoder.h"

#include <optional>
#include <string_view>

namespace reprise {

StreamingDecoder::StreamingDecoder(const Tokenizer& tokenizer, SpecialTokenText special_tokens)
    : tokenizer_(&tokenizer), special_tokens_(special_tokens), decoder_(tokenizer.MakeDecoder()) {}

std::string StreamingDecoder::Push(int32_t token) {
  if (special_tokens_ == SpecialTokenText::kSkip && tokenizer_->IsSpecial(token)) return "";
  const std::optional<std::string_view> content = tokenizer_->TokenContent(token);
  return content.has_value() ? decoder_.Push(*content) : "";
}

std::string StreamingDecoder::Finish() { return decoder_.Finish(); }

}  // namespace reprise
