#include "reprise/hf/tokenizer/byte_pair_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An encoder whose vocabulary is `letters` and the results of `merges`, with ids in that order.
struct Fixture {
  Fixture(const std::string& letters, const std::vector<Merge>& merge_list,
          WholePieces whole_pieces = WholePieces::kMerge)
      : merges(merge_list) {
    for (const char letter : letters)
      vocabulary.try_emplace(std::string(1, letter), vocabulary.size());
    for (const auto& [left, right] : merges)
      vocabulary.try_emplace(left + right, vocabulary.size());
    absl::StatusOr<BytePairEncoder> created =
        BytePairEncoder::Create(vocabulary, merges, whole_pieces);
    EXPECT_TRUE(created.ok()) << created.status();
    if (created.ok()) encoder = *std::move(created);
  }

  std::vector<std::string> Encode(std::string_view piece) const {
    const absl::StatusOr<std::vector<int32_t>> tokens = encoder->Encode(piece);
    EXPECT_TRUE(tokens.ok()) << tokens.status();
    std::vector<std::string> texts;
    for (const int32_t token : *tokens) {
      for (const auto& [text, id] : vocabulary) {
        if (id == token) texts.push_back(text);
      }
    }
    return texts;
  }

  // The definition, step by step: merge the best-ranked pair, leftmost first, until no pair merges.
  std::vector<std::string> EncodeByDefinition(std::string_view piece) const {
    std::vector<std::string> texts;
    for (const char c : piece) texts.push_back(std::string(1, c));
    while (true) {
      size_t best_rank = merges.size();
      size_t best = 0;
      for (size_t i = 0; i + 1 < texts.size(); ++i) {
        for (size_t rank = 0; rank < best_rank; ++rank) {
          if (merges[rank] == Merge(texts[i], texts[i + 1])) {
            best_rank = rank;
            best = i;
          }
        }
      }
      if (best_rank == merges.size()) return texts;
      texts[best] += texts[best + 1];
      texts.erase(texts.begin() + best + 1);
    }
  }

  ByteVocabulary vocabulary;
  std::vector<Merge> merges;
  std::optional<BytePairEncoder> encoder;
};

TEST(BytePairEncoderTest, MergesTheBestRankedPairFirst) {
  const Fixture f("abc", {{"b", "c"}, {"a", "b"}, {"a", "bc"}});
  EXPECT_THAT(f.Encode("ab"), ElementsAre("ab"));
  EXPECT_THAT(f.Encode("abc"), ElementsAre("abc"));  // bc before ab
  EXPECT_THAT(f.Encode("abab"), ElementsAre("ab", "ab"));
  EXPECT_THAT(f.Encode("cba"), ElementsAre("c", "b", "a"));
  EXPECT_THAT(f.Encode(""), IsEmpty());
}

TEST(BytePairEncoderTest, OfEqualPairsTheLeftmostGoesFirst) {
  const Fixture f("a", {{"a", "a"}});
  EXPECT_THAT(f.Encode("aaa"), ElementsAre("aa", "a"));
  EXPECT_THAT(f.Encode("aaaaa"), ElementsAre("aa", "aa", "a"));
}

TEST(BytePairEncoderTest, AWholePieceIsLookedUpOnlyIfAskedFor) {
  // "abc" cannot be reached: its merges need "ab", which "bc" always takes apart.
  const std::vector<Merge> merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  EXPECT_THAT(Fixture("abc", merges).Encode("abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(Fixture("abc", merges, WholePieces::kLookUp).Encode("abc"), ElementsAre("abc"));
  EXPECT_THAT(Fixture("abc", merges, WholePieces::kLookUp).Encode("abca"),
              ElementsAre("a", "bc", "a"));
}

TEST(BytePairEncoderTest, AnyByteMayBeAToken) {
  const Fixture f(std::string("\0\xff", 2), {{std::string(1, '\0'), "\xff"}});
  EXPECT_THAT(f.Encode(std::string_view("\0\xff\xff", 3)),
              ElementsAre(std::string("\0\xff", 2), "\xff"));
}

TEST(BytePairEncoderTest, RefusesAByteThatIsNoToken) {
  const absl::Status status = Fixture("a", {}).encoder->Encode("a\xc3").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "text: the vocabulary has no token for the byte 0xc3");
}

TEST(BytePairEncoderTest, RefusesMergesThatMakeNoSense) {
  const auto error_of = [](const std::vector<Merge>& merges) {
    const ByteVocabulary vocabulary = {{"a", 0}, {"b", 1}, {"ab", 2}};
    return std::string(
        BytePairEncoder::Create(vocabulary, merges, WholePieces::kMerge).status().message());
  };
  EXPECT_EQ(error_of({{"a", "b"}, {"x", "a"}}),
            "merges: number 1: its left side is not in the vocabulary");
  EXPECT_EQ(error_of({{"a", "x"}}), "merges: number 0: its right side is not in the vocabulary");
  EXPECT_EQ(error_of({{"b", "a"}}), "merges: number 0: its result is not in the vocabulary");
  EXPECT_EQ(error_of({{"", "a"}}), "merges: number 0: its left side is not in the vocabulary");
  EXPECT_EQ(error_of({{"a", "b"}, {"a", "b"}}), "merges: number 1 occurs twice");
  EXPECT_EQ(
      BytePairEncoder::Create({{"a", 3}, {"b", 3}}, {}, WholePieces::kMerge).status().message(),
      "vocabulary: two tokens have the id 3");
}

TEST(BytePairEncoderTest, AgreesWithTheDefinition) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    // Merges of tokens that exist by then, in an order that may be other than that of their making.
    std::vector<std::string> tokens = {"a", "b", "c"};
    std::vector<Merge> merges;
    for (int i = 0; i < 12; ++i) {
      const Merge merge(tokens[random() % tokens.size()], tokens[random() % tokens.size()]);
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) continue;
      merges.push_back(merge);
      tokens.push_back(merge.first + merge.second);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    const Fixture f("abc", merges);
    for (int i = 0; i < 20; ++i) {
      std::string piece;
      for (int length = random() % 24; length > 0; --length) piece.push_back('a' + random() % 3);
      ASSERT_EQ(f.Encode(piece), f.EncodeByDefinition(piece)) << piece;
    }
  }
}

TEST(BytePairEncoderTest, ALongPieceTakesNoQuadraticTime) {
  const Fixture f("ab", {{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"a", "b"}, {"b", "a"}});
  std::string piece(1'000'000, 'a');
  for (size_t i = 0; i < piece.size(); i += 17) piece[i] = 'b';
  const auto begin = std::chrono::steady_clock::now();
  const absl::StatusOr<std::vector<int32_t>> tokens = f.encoder->Encode(piece);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_LT(tokens->size(), piece.size() / 4);
  // A second at most, where quadratic time would be an hour.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace reprise
