#include "reprise/hf/tokenizer/byte_level.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "reprise/hf/utf8.h"

namespace reprise {
namespace {

TEST(ByteLevelTest, PrintableAsciiStandsForItself) {
  EXPECT_EQ(LevelFromBytes("don't!~"), "don't!~");
  EXPECT_EQ(BytesFromLevel("don't!~"), "don't!~");
}

TEST(ByteLevelTest, TheOthersAreWrittenAsGpt2WroteThem) {
  EXPECT_EQ(LevelFromBytes(" a\n\t"), "ĠaĊĉ");
  EXPECT_EQ(LevelFromBytes("é"), "Ã©");                  // C3 A9
  EXPECT_EQ(LevelFromBytes(std::string(1, '\0')), "Ā");  // U+0100
  EXPECT_EQ(LevelFromBytes("\x7F\xA0\xAD"), "ġłŃ");      // the last three: U+0121, U+0142, U+0143
}

TEST(ByteLevelTest, EveryByteIsOneCharacterOfItsOwn) {
  std::set<std::string> characters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    const std::string text = LevelFromBytes(bytes);
    EXPECT_EQ(FirstUtf8Unit(text).length, static_cast<int>(text.size()));
    EXPECT_EQ(BytesFromLevel(text), bytes);
    characters.insert(text);
  }
  EXPECT_EQ(characters.size(), 256u);
}

TEST(ByteLevelTest, OtherCharactersAreNotInTheAlphabet) {
  for (const char* text : {" ", "a b", "\n", "\u00a0", "\u00ad", "\u0144", "▁", "🙂"}) {
    EXPECT_EQ(BytesFromLevel(text), std::nullopt) << text;
  }
  EXPECT_EQ(BytesFromLevel(""), "");
}

}  // namespace
}  // namespace reprise
