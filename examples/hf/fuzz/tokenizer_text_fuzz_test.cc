// Any bytes as a text to encode, and as tokens to decode, with a sound tokenizer: text comes back
// as it was, and a stream shows what decoding all at once shows.

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/tokenizer/small_tokenizer.h"
#include "reprise/hf/tokenizer/tokenizer.h"
#include "reprise/hf/tokenizer/tokenizer_json.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

void EncodeAndDecode(const Tokenizer& tokenizer, std::string_view text) {
  for (const SpecialTokens special_tokens : {SpecialTokens::kMatch, SpecialTokens::kPlainText}) {
    const absl::StatusOr<std::vector<int32_t>> tokens =
        tokenizer.Encode(text, {.adds_template = false, .special_tokens = special_tokens});
    CHECK_EQ(tokens.ok(), !FindInvalidUtf8(text).has_value()) << tokens.status();
    if (tokens.ok())
      CHECK_EQ(tokenizer.Decode(*tokens, SpecialTokenText::kKeep), std::string(text));
  }
}

void DecodeStream(const Tokenizer& tokenizer, std::string_view bytes) {
  std::vector<int32_t> tokens;
  std::string together;
  StreamingDecoder decoder(tokenizer, SpecialTokenText::kSkip);
  // Two bytes a token would be special too seldom: 0xFE and 0xFF, which no text has, are the
  // special tokens.
  for (const char c : bytes) {
    const uint8_t byte = static_cast<uint8_t>(c);
    tokens.push_back(byte >= 0xFE ? byte - 0xFE + 261 : byte);
    const std::string text = decoder.Push(tokens.back());
    CHECK(!FindInvalidUtf8(text).has_value());
    together += text;
  }
  together += decoder.Finish();
  CHECK_EQ(together, tokenizer.Decode(tokens, SpecialTokenText::kSkip));
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const reprise::Tokenizer& tokenizer = *new reprise::Tokenizer(
      *reprise::Tokenizer::Create(*reprise::ParseTokenizerJson(reprise::SmallTokenizerJson())));
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  reprise::EncodeAndDecode(tokenizer, bytes);
  reprise::DecodeStream(tokenizer, bytes);
  return 0;
}
