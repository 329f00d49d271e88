#include "reprise/hf/tokenizer/streamed_text.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

// The ids of <0x00> to <0xFF>; nullopt if the vocabulary lacks one.
std::optional<std::vector<int32_t>> ByteTokens(const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const std::optional<int32_t> id = tokenizer.FindToken(absl::StrFormat("<0x%02X>", byte));
    if (!id.has_value()) return std::nullopt;
    ids.push_back(*id);
  }
  return ids;
}

// The length of the character at the front of `bytes`; 0: there is no whole character.
size_t CharacterLength(std::string_view bytes) {
  for (size_t length = 1; length <= std::min<size_t>(4, bytes.size()); ++length) {
    if (!FindInvalidUtf8(bytes.substr(0, length)).has_value()) return length;
  }
  return 0;
}

std::string Repaired(std::string_view run) {
  std::string repaired;
  while (!run.empty()) {
    const size_t length = CharacterLength(run);
    repaired += length > 0 ? run.substr(0, length) : "\uFFFD";
    run.remove_prefix(std::max<size_t>(length, 1));
  }
  return repaired;
}

}  // namespace

std::string StreamedText(const Tokenizer& tokenizer, absl::Span<const int32_t> tokens,
                         SpecialTokenText special_tokens) {
  const std::optional<std::vector<int32_t>> bytes = ByteTokens(tokenizer);
  if (!bytes.has_value()) return tokenizer.Decode(tokens, special_tokens);
  std::vector<int32_t> repaired;
  std::string run;
  const auto end_run = [&] {
    for (const char byte : Repaired(std::exchange(run, {}))) {
      repaired.push_back((*bytes)[static_cast<uint8_t>(byte)]);
    }
  };
  for (const int32_t token : tokens) {
    if (!tokenizer.TokenContent(token).has_value()) continue;
    if (special_tokens == SpecialTokenText::kSkip && tokenizer.IsSpecial(token)) continue;
    const auto byte = std::find(bytes->begin(), bytes->end(), token);
    if (byte != bytes->end()) {
      run.push_back(static_cast<char>(byte - bytes->begin()));
      continue;
    }
    end_run();
    repaired.push_back(token);
  }
  end_run();
  return tokenizer.Decode(repaired, SpecialTokenText::kKeep);
}

}  // namespace reprise
