#include "reprise/hf/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// The 68 bytes that do not map to themselves map to U+0100.. in their order.
constexpr int kFirstOther = 0x100;
constexpr int kNumOthers = 68;

struct Alphabet {
  std::array<char32_t, 256> characters{};
  std::array<uint8_t, kNumOthers> others{};  // the byte of U+0100 + i
};

constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet;
  int num_others = 0;
  for (int byte = 0; byte < 256; ++byte) {
    if (StandsForItself(byte)) {
      alphabet.characters[byte] = byte;
    } else {
      alphabet.others[num_others] = byte;
      alphabet.characters[byte] = kFirstOther + num_others++;
    }
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();
static_assert(kAlphabet.characters[' '] == U'Ġ');
static_assert(kAlphabet.characters[0xAD] == kFirstOther + kNumOthers - 1);

std::optional<uint8_t> ByteOf(char32_t character) {
  if (character < 256 && StandsForItself(character)) return static_cast<uint8_t>(character);
  if (character >= kFirstOther && character < kFirstOther + kNumOthers) {
    return kAlphabet.others[character - kFirstOther];
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> BytesFromLevel(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const Utf8Unit unit = FirstUtf8Unit(text);
    const std::optional<uint8_t> byte = ByteOf(unit.code_point);
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
    text.remove_prefix(unit.length);
  }
  return bytes;
}

std::string LevelFromBytes(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) AppendUtf8(kAlphabet.characters[static_cast<uint8_t>(byte)], text);
  return text;
}

}  // namespace reprise
