// Any bytes as tokenizer.json: refused, or it encodes and decodes without harm.

#include <glog/logging.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "reprise/hf/strict_json.h"
#include "reprise/hf/tokenizer/tokenizer.h"
#include "reprise/hf/tokenizer/tokenizer_json.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

void Run(std::string_view text) {
  const absl::StatusOr<nlohmann::json> value = ParseJson(text);
  if (!value.ok()) return;
  const absl::StatusOr<TokenizerSpec> spec = ParseTokenizerJson(*value);
  if (!spec.ok()) return;
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(*spec);
  if (!tokenizer.ok()) return;
  for (const char* sample : {"", "hello hell", " <s>  lol</s> 12345\n\n é🙂 "}) {
    const absl::StatusOr<std::vector<int32_t>> tokens = tokenizer->Encode(sample);
    if (!tokens.ok()) continue;
    for (const int32_t token : *tokens) CHECK(tokenizer->TokenContent(token).has_value()) << token;
    const std::string decoded = tokenizer->Decode(*tokens, SpecialTokenText::kKeep);
    CHECK(!FindInvalidUtf8(decoded).has_value());
    StreamingDecoder decoder(*tokenizer, SpecialTokenText::kKeep);
    std::string together;
    for (const int32_t token : *tokens) together += decoder.Push(token);
    together += decoder.Finish();
    CHECK(!FindInvalidUtf8(together).has_value());
    // With U+FFFD, a run of byte tokens may be invalid: then the stream keeps its whole characters.
    if (decoded.find("\uFFFD") == std::string::npos) CHECK_EQ(together, decoded);
  }
}

}  // namespace
}  // namespace reprise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  reprise::Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
