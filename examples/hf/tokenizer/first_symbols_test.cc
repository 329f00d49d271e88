#include "reprise/hf/tokenizer/first_symbols.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Ids: <0x00> is 1000 and so on.
ByteVocabulary WithBytes(ByteVocabulary vocabulary) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">"] = 1000 + byte;
  }
  return vocabulary;
}

std::vector<int32_t> Of(const ByteVocabulary& vocabulary, const SymbolOptions& options,
                        std::string_view piece) {
  const absl::StatusOr<FirstSymbols> symbols = FirstSymbols::Create(vocabulary, options);
  EXPECT_TRUE(symbols.ok()) << symbols.status();
  const absl::StatusOr<std::vector<int32_t>> tokens = symbols->Of(piece);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  return *tokens;
}

std::string ErrorOf(const ByteVocabulary& vocabulary, const SymbolOptions& options,
                    std::string_view piece) {
  const absl::StatusOr<FirstSymbols> symbols = FirstSymbols::Create(vocabulary, options);
  if (!symbols.ok()) return std::string(symbols.status().message());
  return std::string(symbols->Of(piece).status().message());
}

TEST(FirstSymbolsTest, UnitsAreBytesOrCharacters) {
  const ByteVocabulary vocabulary = {{"a", 0}, {"é", 1}, {"\xc3", 2}, {"\xa9", 3}, {"ab", 4}};
  EXPECT_THAT(Of(vocabulary, {}, "aéa"), ElementsAre(0, 2, 3, 0));
  EXPECT_THAT(Of(vocabulary, {.units = SymbolUnits::kCharacters}, "aéa"), ElementsAre(0, 1, 0));
  EXPECT_THAT(Of(vocabulary, {}, ""), IsEmpty());
}

TEST(FirstSymbolsTest, ACharacterThatIsNoTokenIsItsBytes) {
  const SymbolOptions options = {.units = SymbolUnits::kCharacters,
                                 .byte_fallback = true,
                                 .unknown_token = "<unk>",
                                 .fuses_unknown = true};
  const ByteVocabulary vocabulary = WithBytes({{"a", 0}, {"é", 1}, {"<unk>", 2}});
  EXPECT_THAT(Of(vocabulary, options, "aéñ\n"), ElementsAre(0, 1, 1195, 1177, 1010));
  EXPECT_THAT(Of(vocabulary, options, "🙂"), ElementsAre(1240, 1159, 1153, 1130));
}

TEST(FirstSymbolsTest, WithoutBytesItIsUnknown) {
  const ByteVocabulary vocabulary = {{"a", 0}, {"<unk>", 2}};
  const SymbolOptions each = {.units = SymbolUnits::kCharacters, .unknown_token = "<unk>"};
  EXPECT_THAT(Of(vocabulary, each, "ñña🙂"), ElementsAre(2, 2, 0, 2));
  SymbolOptions fused = each;
  fused.fuses_unknown = true;
  EXPECT_THAT(Of(vocabulary, fused, "ñña🙂é"), ElementsAre(2, 0, 2));
}

TEST(FirstSymbolsTest, NamesWhatThereIsNoTokenFor) {
  EXPECT_EQ(ErrorOf({{"a", 0}}, {}, "a\xc3"),
            "text: the vocabulary has no token for the byte 0xc3");
  EXPECT_EQ(ErrorOf({{"a", 0}}, {.units = SymbolUnits::kCharacters}, "aé"),
            "text: the vocabulary has no token for the bytes 0xc3 0xa9");
}

TEST(FirstSymbolsTest, TheTokensThatOptionsSpeakOfMustBeThere) {
  ByteVocabulary vocabulary = WithBytes({});
  vocabulary.erase("<0x0A>");
  EXPECT_EQ(ErrorOf(vocabulary, {.byte_fallback = true}, ""),
            "byte_fallback: expected the tokens <0x00> to <0xFF> in the vocabulary, got no <0x0A>");
  EXPECT_EQ(ErrorOf(vocabulary, {.unknown_token = "<unk>"}, ""),
            "unk_token: expected a token of the vocabulary");
}

}  // namespace
}  // namespace reprise
