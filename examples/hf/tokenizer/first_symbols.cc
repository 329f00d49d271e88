#include "reprise/hf/tokenizer/first_symbols.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

std::string FallbackToken(int byte) { return absl::StrFormat("<0x%02X>", byte); }

bool IsOneCharacter(std::string_view bytes) {
  if (bytes.empty()) return false;
  const Utf8Unit unit = FirstUtf8Unit(bytes);
  return unit.kind == Utf8Kind::kCharacter && static_cast<size_t>(unit.length) == bytes.size();
}

}  // namespace

std::optional<int32_t> FindToken(const ByteVocabulary& vocabulary, std::string_view bytes) {
  const auto it = vocabulary.find(absl::string_view(bytes.data(), bytes.size()));
  if (it == vocabulary.end()) return std::nullopt;
  return it->second;
}

absl::StatusOr<FirstSymbols> FirstSymbols::Create(const ByteVocabulary& vocabulary,
                                                  const SymbolOptions& options) {
  FirstSymbols symbols;
  symbols.units_ = options.units;
  symbols.fuses_unknown_ = options.fuses_unknown;
  for (const auto& [bytes, id] : vocabulary) {
    if (bytes.size() == 1) {
      symbols.of_byte_[static_cast<uint8_t>(bytes[0])] = id;
    } else if (options.units == SymbolUnits::kCharacters && IsOneCharacter(bytes)) {
      symbols.of_character_.emplace(bytes, id);
    }
  }
  if (options.byte_fallback) {
    symbols.fallback_.emplace();
    for (int byte = 0; byte < 256; ++byte) {
      const std::optional<int32_t> token = FindToken(vocabulary, FallbackToken(byte));
      if (!token) {
        return absl::InvalidArgumentError(
            absl::StrCat("byte_fallback: expected the tokens <0x00> to <0xFF> in the vocabulary, "
                         "got no ",
                         FallbackToken(byte)));
      }
      (*symbols.fallback_)[byte] = *token;
    }
  }
  if (options.unknown_token) {
    symbols.unknown_ = FindToken(vocabulary, *options.unknown_token);
    if (!symbols.unknown_) {
      return absl::InvalidArgumentError("unk_token: expected a token of the vocabulary");
    }
  }
  return symbols;
}

absl::StatusOr<std::vector<int32_t>> FirstSymbols::Of(std::string_view piece) const {
  std::vector<int32_t> tokens;
  tokens.reserve(piece.size());
  bool last_is_unknown = false;
  while (!piece.empty()) {
    const size_t length =
        units_ == SymbolUnits::kBytes ? 1 : static_cast<size_t>(FirstUtf8Unit(piece).length);
    const std::string_view unit = piece.substr(0, length);
    piece.remove_prefix(length);
    const std::optional<int32_t> token =
        length == 1 ? of_byte_[static_cast<uint8_t>(unit[0])] : FindToken(of_character_, unit);
    if (token) {
      tokens.push_back(*token);
    } else if (fallback_) {
      for (const char byte : unit) tokens.push_back((*fallback_)[static_cast<uint8_t>(byte)]);
    } else if (unknown_) {
      if (!last_is_unknown || !fuses_unknown_) tokens.push_back(*unknown_);
    } else {
      std::string bytes;
      for (const char byte : unit)
        absl::StrAppendFormat(&bytes, " 0x%02x", static_cast<uint8_t>(byte));
      return absl::InvalidArgumentError(absl::StrCat(
          "text: the vocabulary has no token for the byte", length > 1 ? "s" : "", bytes));
    }
    last_is_unknown = !token && !fallback_;
  }
  return tokens;
}

}  // namespace reprise
