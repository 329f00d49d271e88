#include "reprise/cache/blocks/sequence_content.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SlotId kA(0), kB(1);
constexpr PrefixSeed kSeed = {.low = 5, .high = 6};

const PrefixHasher& Hasher() {
  static const PrefixHasher& hasher = *new PrefixHasher(kSeed);
  return hasher;
}

// Blocks of 3 tokens.
SequenceContent Content() {
  return *SequenceContent::Create({.num_slots = 2, .max_blocks = 5, .block_size = 3}, Hasher());
}

PrefixHash HashOf(PrefixHash parent, std::vector<int32_t> tokens) {
  return Hasher().Extend(parent, tokens);
}

TEST(SequenceContentTest, BlocksAreKnownWhenTheirLastTokenIsCommitted) {
  SequenceContent content = Content();
  content.Begin(kA, {});
  EXPECT_EQ(content.Commit(kA, {1, 2}), 0);
  EXPECT_EQ(content.Commit(kA, {3, 4}), 1);
  EXPECT_EQ(content.Commit(kA, {5, 6, 7}), 2);
  EXPECT_THAT(content.tokens(kA), ElementsAre(1, 2, 3, 4, 5, 6, 7));
  const PrefixHash first = HashOf(Hasher().Root(), {1, 2, 3});
  const PrefixKey key = content.Key(kA, 1, 4);
  EXPECT_EQ(key.group, 4);
  EXPECT_EQ(key.parent, first);
  EXPECT_EQ(key.hash, HashOf(first, {4, 5, 6}));
  EXPECT_THAT(key.tokens, ElementsAre(4, 5, 6));
}

TEST(SequenceContentTest, APromptIsHashedBeforeItIsCommitted) {
  SequenceContent content = Content();
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6, 7, 8};
  content.Begin(kA, {.tokens = prompt});
  EXPECT_THAT(content.HashPrompt(kA, prompt, 2), SizeIs(2));
  EXPECT_EQ(content.num_known(kA), 0);
  EXPECT_EQ(content.HashPrompt(kA, prompt, 1)[0], HashOf(Hasher().Root(), {1, 2, 3}));
  EXPECT_EQ(content.Commit(kA, prompt), 2);
  EXPECT_EQ(content.Key(kA, 0, 0).hash, HashOf(Hasher().Root(), {1, 2, 3}));
}

TEST(SequenceContentTest, PromptHashesAreKeptOnlyForMatchingCommits) {
  SequenceContent content = Content();
  const std::vector<int32_t> prompt = {1, 2, 3, 4, 5, 6};
  content.Begin(kA, {.tokens = prompt});
  content.HashPrompt(kA, prompt, 2);
  EXPECT_EQ(content.Commit(kA, {1, 2, 3, 4, 9, 6}), 2);  // differs from the hashed prompt
  EXPECT_EQ(content.Key(kA, 1, 0).hash, HashOf(HashOf(Hasher().Root(), {1, 2, 3}), {4, 9, 6}));
}

TEST(SequenceContentTest, ForgottenSequenceHasNoKnownTokens) {
  SequenceContent content = Content();
  const ExtraKey input = {.kind = ExtraKeyKind::kAudio, .value = "audio"};
  content.Begin(kA, {.num_encoder_tokens = 2, .encoder_keys = absl::MakeConstSpan(&input, 1)});
  ASSERT_EQ(content.Commit(kA, {1, 2, 3, 4}), 1);
  content.Forget(kA);
  EXPECT_EQ(content.Commit(kA, {5, 6}), 0);
  EXPECT_THAT(content.tokens(kA), IsEmpty());
  EXPECT_FALSE(content.encoder_root(kA).has_value());
  content.Copy(kA, kB, 6);
  EXPECT_EQ(content.Commit(kB, {7, 8, 9}), 0);
}

TEST(SequenceContentTest, TruncatedSequenceAcceptsOtherTokens) {
  SequenceContent content = Content();
  content.Begin(kA, {});
  content.Commit(kA, {1, 2, 3, 4, 5, 6});
  content.Truncate(kA, 4);
  EXPECT_EQ(content.num_known_blocks(kA), 1);
  EXPECT_EQ(content.Commit(kA, {7, 8}), 2);
  EXPECT_EQ(content.Key(kA, 1, 0).hash, HashOf(HashOf(Hasher().Root(), {1, 2, 3}), {4, 7, 8}));
  content.Truncate(kA, 100);
  EXPECT_EQ(content.num_known(kA), 6);
}

TEST(SequenceContentTest, ImagesChangeTheHashesOfOverlappingBlocks) {
  SequenceContent content = Content();
  const RangeKey image = {
      .kind = ExtraKeyKind::kImage, .value = "cat", .first_token = 4, .num_tokens = 3};
  content.Begin(kA, {.range_keys = absl::MakeConstSpan(&image, 1)});
  EXPECT_THAT(content.ExtraOf(kA, 0), IsEmpty());
  ASSERT_THAT(content.ExtraOf(kA, 1), SizeIs(1));
  EXPECT_EQ(content.ExtraOf(kA, 1)[0].offset, 1);   // 4 - 3
  EXPECT_EQ(content.ExtraOf(kA, 2)[0].offset, -2);  // 4 - 6: the range begins in an earlier block
  EXPECT_THAT(content.ExtraOf(kA, 3), IsEmpty());
  content.Commit(kA, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(content.Key(kA, 0, 0).hash, HashOf(Hasher().Root(), {1, 2, 3}));
  const PrefixKey key = content.Key(kA, 1, 0);
  EXPECT_NE(key.hash, HashOf(key.parent, {4, 5, 6}));
  EXPECT_EQ(key.hash, Hasher().Extend(key.parent, key.tokens, key.extra));
}

TEST(SequenceContentTest, CopyHasTheKnownTokensOfItsSource) {
  SequenceContent content = Content();
  content.Begin(kA, {});
  content.Commit(kA, {1, 2, 3, 4});
  content.Copy(kA, kB, 4);
  EXPECT_EQ(content.Commit(kB, {5, 6}), 2);
  EXPECT_THAT(content.tokens(kB), ElementsAre(1, 2, 3, 4, 5, 6));
  content.ForgetRest(kA);
  EXPECT_EQ(content.Commit(kA, {5, 6}), 1);  // no further tokens are known
  content.Copy(kA, kB, 6);                   // only 4 of the 6 committed tokens are known
  EXPECT_EQ(content.num_known(kB), 4);
  EXPECT_EQ(content.Commit(kB, {7, 8}), 1);
}

TEST(SequenceContentTest, LoadRestoresASave) {
  SequenceContent content = Content();
  const RangeKey image = {
      .kind = ExtraKeyKind::kImage, .value = "cat", .first_token = 1, .num_tokens = 9};
  content.Begin(kA, {.range_keys = absl::MakeConstSpan(&image, 1)});
  content.Commit(kA, {1, 2, 3, 4});
  const SavedContent saved = content.Save(kA);
  content.Load(kB, saved);
  EXPECT_EQ(content.Commit(kB, {5, 6}), 2);
  EXPECT_EQ(content.Commit(kA, {5, 6}), 2);
  EXPECT_EQ(content.Key(kB, 1, 0).hash, PrefixHash(content.Key(kA, 1, 0).hash));
}

TEST(SequenceContentTest, EncoderInputIsPartOfTheRoot) {
  SequenceContent content = Content();
  const ExtraKey song = {.kind = ExtraKeyKind::kAudio, .value = "song"};
  content.Begin(kA, {.num_encoder_tokens = 4, .encoder_keys = absl::MakeConstSpan(&song, 1)});
  EXPECT_TRUE(content.encoder_root(kA).has_value());
  EXPECT_NE(content.Parent(kA, 0), Hasher().Root());
  content.Begin(kA, {.num_encoder_tokens = 4});  // without a key
  EXPECT_FALSE(content.encoder_root(kA).has_value());
  EXPECT_EQ(content.Commit(kA, {1, 2, 3}), 0);
}

TEST(SequenceContentTest, RejectsRowsThatExceedMemory) {
  const auto content = SequenceContent::Create(
      {.num_slots = 1 << 20, .max_blocks = 1 << 20, .block_size = 1 << 20}, Hasher());
  EXPECT_EQ(content.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(content.status().message()), testing::HasSubstr("num_slots"));
}

}  // namespace
}  // namespace reprise
