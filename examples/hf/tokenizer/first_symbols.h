// Unstable: any version may change this header (docs/embedding.md).
//
// The tokens that a piece of text consists of before any are merged: one for each of its bytes or
// characters.
//
//   // {"a": 0, "<unk>": 1, "<0x00>": 2, ..., "<0xFF>": 257}
//   FirstSymbols::Create(vocabulary, {.units = SymbolUnits::kCharacters, .byte_fallback = true});
//   // "aé" is 0 and the tokens <0xC3> and <0xA9>
//
// Thread safety: as any const object.

#ifndef REPRISE_HF_TOKENIZER_FIRST_SYMBOLS_H_
#define REPRISE_HF_TOKENIZER_FIRST_SYMBOLS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace reprise {

// Token ids by the bytes of their content.
using ByteVocabulary = absl::flat_hash_map<std::string, int32_t>;

std::optional<int32_t> FindToken(const ByteVocabulary& vocabulary, std::string_view bytes);

enum class SymbolUnits { kBytes, kCharacters };

struct SymbolOptions {
  SymbolUnits units = SymbolUnits::kBytes;
  // A unit that is not a token becomes the tokens <0x00> to <0xFF> of its bytes.
  bool byte_fallback = false;
  // Otherwise it becomes this token, if set. With `fuses_unknown`, several in a row become one.
  std::optional<std::string> unknown_token = {};
  bool fuses_unknown = false;
};

class FirstSymbols {
 public:
  // Errors: InvalidArgument if a token that the options require is not in the vocabulary.
  static absl::StatusOr<FirstSymbols> Create(const ByteVocabulary& vocabulary,
                                             const SymbolOptions& options);

  // REQUIRES: `piece` is UTF-8, if units are characters.
  // Errors: InvalidArgument, naming the unit, if it is not a token and the options give no
  // replacement.
  absl::StatusOr<std::vector<int32_t>> Of(std::string_view piece) const;

 private:
  FirstSymbols() = default;

  SymbolUnits units_ = SymbolUnits::kBytes;
  std::array<std::optional<int32_t>, 256> of_byte_;  // units of one byte
  ByteVocabulary of_character_;                      // units of several
  std::optional<std::array<int32_t, 256>> fallback_;
  std::optional<int32_t> unknown_;
  bool fuses_unknown_ = false;
};

}  // namespace reprise

#endif  // REPRISE_HF_TOKENIZER_FIRST_SYMBOLS_H_
