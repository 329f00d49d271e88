// Prefix hits of BlockManager: the prefixes that prompts find, and the content that may be found.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/cache/blocks/block_manager.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SlotId kA(0), kB(1), kC(2);

// 19 allocatable blocks of 4 tokens, 3 slots of at most 6 blocks.
BlockManager ManagerOf(BlockManagerOptions options = {}) {
  options.num_blocks = 20;
  options.block_size = 4;
  options.num_slots = 3;
  options.max_blocks = 6;
  options.prefix_reuse = PrefixReuse::kOn;
  return *BlockManager::Create(options);
}

std::vector<int32_t> Tokens(int first, int num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  for (int i = 0; i < num_tokens; ++i) tokens[i] = first + i;
  return tokens;
}

// Adds a sequence of these tokens and commits all of them.
PromptHits Compute(BlockManager& manager, SlotId slot, const std::vector<int32_t>& tokens) {
  const absl::StatusOr<PromptHits> hits = manager.Add(slot, {.tokens = tokens});
  EXPECT_TRUE(hits.ok()) << hits.status();
  EXPECT_TRUE(manager.Commit(slot, absl::MakeConstSpan(tokens).subspan(hits->num_tokens)).ok());
  manager.CheckInvariants();
  return *hits;
}

TEST(BlockManagerPrefixTest, PromptSharesFullBlocksOfALiveSequence) {
  BlockManager manager = ManagerOf();
  EXPECT_EQ(Compute(manager, kA, Tokens(1, 11)), PromptHits{});  // blocks 1, 2, 3
  std::vector<int32_t> tokens = Tokens(1, 8);
  tokens.insert(tokens.end(), {90, 91, 92});
  EXPECT_EQ(Compute(manager, kB, tokens), (PromptHits{.num_tokens = 8}));
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(2), BlockId(4)));
  EXPECT_EQ(manager.pool().ref_count(BlockId(1)), 2);
  EXPECT_EQ(manager.num_committed(kB), 11);
  EXPECT_THAT(manager.TakeCopies(), IsEmpty());
}

TEST(BlockManagerPrefixTest, LeavesAtLeastOneTokenToCompute) {
  BlockManager manager = ManagerOf();
  Compute(manager, kA, Tokens(1, 8));
  const absl::StatusOr<PromptHits> hits = manager.Add(kB, {.tokens = Tokens(1, 8)});
  ASSERT_TRUE(hits.ok());
  EXPECT_EQ(hits->num_tokens, 4);  // not all 8 cached tokens
  const absl::StatusOr<PromptHits> none = manager.Add(kC, {.tokens = {}});
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->num_tokens, 0);
}

TEST(BlockManagerPrefixTest, FindsOnlyCommittedTokens) {
  BlockManager manager = ManagerOf();
  const std::vector<int32_t> tokens = Tokens(1, 13);
  ASSERT_TRUE(manager.Add(kA, {.tokens = tokens}).ok());
  // One block and 3 tokens.
  ASSERT_TRUE(manager.Commit(kA, absl::MakeConstSpan(tokens).first(7)).ok());
  EXPECT_EQ(manager.Add(kB, {.tokens = tokens})->num_tokens, 4);
}

TEST(BlockManagerPrefixTest, FreedBlocksAreFoundUntilTheyAreReallocated) {
  BlockManager manager = ManagerOf();
  Compute(manager, kA, Tokens(1, 20));
  ASSERT_TRUE(manager.Free(kA).ok());
  EXPECT_EQ(manager.pool().num_cached(), 5);
  EXPECT_EQ(Compute(manager, kA, Tokens(1, 20)).num_tokens, 16);
  ASSERT_TRUE(manager.Free(kA).ok());
  // Three sequences of 6 blocks leave one of 19 blocks. It is the first block of the prompt,
  // because its children are evicted first.
  ASSERT_TRUE(manager.Add(kA, 24).ok());
  ASSERT_TRUE(manager.Add(kB, 24).ok());
  ASSERT_TRUE(manager.Add(kC, 24).ok());
  ASSERT_TRUE(manager.Free(kC).ok());
  EXPECT_EQ(manager.Add(kC, {.tokens = Tokens(1, 20)})->num_tokens, 4);
  manager.CheckInvariants();
}

TEST(BlockManagerPrefixTest, PreemptedSequenceFindsItsTokensAgain) {
  BlockManager manager = ManagerOf();
  std::vector<int32_t> tokens = Tokens(1, 5);
  Compute(manager, kA, tokens);
  for (int32_t sampled = 50; sampled < 56; ++sampled) {  // both prompt and generated tokens
    ASSERT_TRUE(manager.Append(kA, 1).ok());
    ASSERT_TRUE(manager.Commit(kA, {sampled}).ok());
    tokens.push_back(sampled);
  }
  ASSERT_TRUE(manager.Free(kA).ok());
  EXPECT_EQ(manager.Add(kB, {.tokens = tokens})->num_tokens, 8);  // of 11
}

TEST(BlockManagerPrefixTest, LookupReturnsTheHitsOfAddAndChangesNothing) {
  BlockManager manager = ManagerOf();
  Compute(manager, kA, Tokens(1, 11));
  const std::vector<int32_t> tokens = Tokens(1, 10);
  const SequencePrompt prompt = {.tokens = tokens};
  const int64_t num_asked = manager.prefix_cache().index().statistics().num_tokens_asked;
  const int num_used = manager.pool().num_used();
  EXPECT_EQ(*manager.Lookup(kB, prompt), (PromptHits{.num_tokens = 8}));
  EXPECT_FALSE(manager.contains(kB));
  EXPECT_EQ(manager.pool().num_used(), num_used);
  EXPECT_EQ(manager.prefix_cache().index().statistics().num_tokens_asked, num_asked);
  manager.CheckInvariants();
  EXPECT_EQ(*manager.Add(kB, prompt), (PromptHits{.num_tokens = 8}));
  EXPECT_EQ(*manager.Lookup(kC, {.tokens = Tokens(50, 10)}), PromptHits{});
  // Errors of Add() other than a lack of blocks.
  EXPECT_TRUE(absl::IsAlreadyExists(manager.Lookup(kB, prompt).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(manager.Lookup(kC, {.tokens = Tokens(1, 25)}).status()));
  ASSERT_TRUE(manager.Free(kA).ok());
  ASSERT_TRUE(manager.Free(kB).ok());
  ASSERT_TRUE(manager.Add(kB, 4 * 6).ok());
  ASSERT_TRUE(manager.Add(kC, 4 * 6).ok());
  // 7 blocks are available.
  EXPECT_EQ(manager.Lookup(kA, {.tokens = Tokens(1, 24)})->num_tokens, 8);
}

TEST(BlockManagerPrefixTest, AdaptersSaltsAndImagesDistinguishPrefixes) {
  BlockManager manager = ManagerOf();
  const std::vector<int32_t> tokens = Tokens(1, 12);
  const ExtraKey adapter = {.kind = ExtraKeyKind::kAdapter, .value = "x"};
  const ExtraKey salt = {.kind = ExtraKeyKind::kSalt, .value = "x"};
  const RangeKey image = {
      .kind = ExtraKeyKind::kImage, .value = "x", .first_token = 5, .num_tokens = 2};
  const RangeKey other_image = {
      .kind = ExtraKeyKind::kImage, .value = "y", .first_token = 5, .num_tokens = 2};
  const auto hits_of = [&](const SequencePrompt& prompt) {
    const absl::StatusOr<PromptHits> hits = manager.Add(kB, prompt);
    EXPECT_TRUE(hits.ok()) << hits.status();
    EXPECT_TRUE(manager.Free(kB).ok());
    return hits->num_tokens;
  };
  const SequencePrompt with_image = {.tokens = tokens,
                                     .extra_keys = absl::MakeConstSpan(&adapter, 1),
                                     .range_keys = absl::MakeConstSpan(&image, 1)};
  ASSERT_TRUE(manager.Add(kA, with_image).ok());
  ASSERT_TRUE(manager.Commit(kA, tokens).ok());
  EXPECT_EQ(hits_of(with_image), 8);
  EXPECT_EQ(hits_of({.tokens = tokens}), 0);
  EXPECT_EQ(hits_of({.tokens = tokens, .extra_keys = absl::MakeConstSpan(&salt, 1)}), 0);
  // The image changes the hash of its block and all later hashes, but not the hash of the previous
  // block.
  EXPECT_EQ(hits_of({.tokens = tokens, .extra_keys = absl::MakeConstSpan(&adapter, 1)}), 4);
  EXPECT_EQ(hits_of({.tokens = tokens,
                     .extra_keys = absl::MakeConstSpan(&adapter, 1),
                     .range_keys = absl::MakeConstSpan(&other_image, 1)}),
            4);
}

TEST(BlockManagerPrefixTest, PartialHitCopiesTheMatchingTokensOfABlock) {
  BlockManager manager =
      ManagerOf({.prefix_tokens = PrefixTokens::kStored, .partial_hits = PartialHits::kCopied});
  Compute(manager, kA, Tokens(1, 12));  // blocks 1, 2, 3
  // Tokens 1 to 8 match, and 9 and 10 in the third block.
  const absl::StatusOr<PromptHits> hits =
      manager.Add(kB, {.tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 77, 78}});
  ASSERT_TRUE(hits.ok());
  EXPECT_EQ(hits->num_tokens, 10);
  EXPECT_THAT(manager.blocks(kB), ElementsAre(BlockId(1), BlockId(2), BlockId(4)));
  manager.CheckInvariants();
  EXPECT_EQ(manager.pool().ref_count(BlockId(3)), 2);  // kept until the copy is taken
  EXPECT_THAT(manager.TakeCopies(), ElementsAre(BlockCopy{.src = 3, .dst = 4}));
  EXPECT_EQ(manager.pool().ref_count(BlockId(3)), 1);
  EXPECT_FALSE(manager.has_copies());
  // A hit never includes the prompt's last token: here it has 3 of 4.
  EXPECT_EQ(manager.Add(kC, {.tokens = Tokens(1, 12)})->num_tokens, 11);
}

TEST(BlockManagerPrefixTest, PartialHitIsSkippedIfItsSourceLeavesTooFewBlocks) {
  BlockManager manager = *BlockManager::Create({.num_blocks = 4,
                                                .block_size = 4,
                                                .num_slots = 3,
                                                .max_blocks = 6,
                                                .prefix_reuse = PrefixReuse::kOn,
                                                .prefix_tokens = PrefixTokens::kStored,
                                                .partial_hits = PartialHits::kCopied});
  Compute(manager, kA, Tokens(1, 8));
  ASSERT_TRUE(manager.Free(kA).ok());
  // The pool has three blocks: one is found, and two are new, including the partially filled one.
  const absl::StatusOr<PromptHits> hits =
      manager.Add(kB, {.tokens = {1, 2, 3, 4, 5, 6, 77, 78, 79, 80, 81, 82}});
  ASSERT_TRUE(hits.ok()) << hits.status();
  EXPECT_EQ(hits->num_tokens, 4);
  EXPECT_FALSE(manager.has_copies());
  manager.CheckInvariants();
}

TEST(BlockManagerPrefixTest, CopyToAFreedSequenceIsDropped) {
  BlockManager manager =
      ManagerOf({.prefix_tokens = PrefixTokens::kStored, .partial_hits = PartialHits::kCopied});
  Compute(manager, kA, Tokens(1, 4));
  ASSERT_TRUE(manager.Add(kB, {.tokens = {1, 2, 9}}).ok());
  EXPECT_TRUE(manager.has_copies());
  ASSERT_TRUE(manager.Free(kB).ok());
  EXPECT_FALSE(manager.has_copies());
  EXPECT_EQ(manager.pool().ref_count(BlockId(1)), 1);
  manager.CheckInvariants();
}

TEST(BlockManagerPrefixTest, TokensWithoutIdsEndTheFindablePrefix) {
  BlockManager manager = ManagerOf();
  const std::vector<int32_t> tokens = Tokens(1, 12);
  ASSERT_TRUE(manager.Add(kA, {.tokens = tokens}).ok());
  ASSERT_TRUE(manager.Commit(kA, absl::MakeConstSpan(tokens).first(4)).ok());
  ASSERT_TRUE(manager.CommitUnknown(kA, 2).ok());
  ASSERT_TRUE(manager.Commit(kA, absl::MakeConstSpan(tokens).subspan(6)).ok());
  EXPECT_EQ(manager.num_committed(kA), 12);
  EXPECT_EQ(manager.Add(kB, {.tokens = tokens})->num_tokens, 4);
}

TEST(BlockManagerPrefixTest, OverwritingATruncatedBlockRemovesItFromTheIndex) {
  BlockManager manager = ManagerOf();
  Compute(manager, kA, Tokens(1, 8));
  ASSERT_TRUE(manager.Truncate(kA, 6).ok());
  EXPECT_EQ(manager.Add(kB, {.tokens = Tokens(1, 9)})->num_tokens, 8);  // still unchanged
  ASSERT_TRUE(manager.Free(kB).ok());
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_THAT(manager.TakeCopies(), IsEmpty());  // no other user: written in place
  EXPECT_EQ(manager.Add(kB, {.tokens = Tokens(1, 9)})->num_tokens, 4);
  manager.CheckInvariants();
}

TEST(BlockManagerPrefixTest, ForgetPrefixesHidesAllEarlierContent) {
  BlockManager manager = ManagerOf();
  const std::vector<int32_t> tokens = Tokens(1, 13);
  Compute(manager, kA, Tokens(1, 5));
  manager.ForgetPrefixes();
  ASSERT_TRUE(manager.Append(kA, 8).ok());
  ASSERT_TRUE(manager.Commit(kA, absl::MakeConstSpan(tokens).subspan(5)).ok());
  EXPECT_EQ(manager.Add(kB, {.tokens = tokens})->num_tokens, 0);
  ASSERT_TRUE(manager.Commit(kB, tokens).ok());
  EXPECT_EQ(manager.Add(kC, {.tokens = tokens})->num_tokens, 12);
}

TEST(BlockManagerPrefixTest, ForgottenContentIsNotFoundButStaysWithItsUsers) {
  BlockManager manager = ManagerOf();
  Compute(manager, kA, Tokens(1, 13));
  std::vector<int32_t> tokens = Tokens(1, 8);
  tokens.push_back(90);
  EXPECT_EQ(Compute(manager, kB, tokens).num_tokens, 8);
  ASSERT_TRUE(manager.ForgetContent(kA).ok());
  manager.CheckInvariants();
  EXPECT_EQ(Compute(manager, kC, Tokens(1, 13)).num_tokens, 0);
  EXPECT_EQ(manager.num_committed(kB), 9);
  EXPECT_EQ(manager.blocks(kB)[0], manager.blocks(kA)[0]);
  // Later commits of this sequence are not indexed either. Commits of the other sequence are.
  ASSERT_TRUE(manager.Append(kA, 3).ok());
  ASSERT_TRUE(manager.Commit(kA, Tokens(14, 3)).ok());
  ASSERT_TRUE(manager.Free(kC).ok());
  EXPECT_EQ(manager.Add(kC, {.tokens = Tokens(1, 17)})->num_tokens, 12);  // committed by kC
  ASSERT_TRUE(manager.Free(kA).ok());
  manager.CheckInvariants();
  EXPECT_EQ(manager.ForgetContent(kA).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager.ForgetContent(SlotId(3)).code(), absl::StatusCode::kInvalidArgument);
}

TEST(BlockManagerPrefixTest, ForgetContentCoversCopiesReleasedWindowBlocksAndEncoder) {
  BlockManager manager =
      ManagerOf({.groups = {{},
                            {.retention = KvRetention::kSlidingWindow, .span = 4},
                            {.retention = KvRetention::kCross}}});
  const std::vector<int32_t> tokens = Tokens(1, 9);
  const ExtraKey input = {.kind = ExtraKeyKind::kOther, .value = "input"};
  const SequencePrompt prompt = {
      .tokens = tokens, .num_encoder_tokens = 3, .encoder_keys = absl::MakeConstSpan(&input, 1)};
  for (const SlotId slot : {kA, kB}) {  // both sequences compute it
    ASSERT_TRUE(manager.Add(slot, prompt).ok());
  }
  for (const SlotId slot : {kA, kB}) {
    ASSERT_TRUE(manager.CommitEncoder(slot).ok());
    ASSERT_TRUE(manager.Commit(slot, tokens).ok());
  }
  EXPECT_EQ(*manager.Add(kC, prompt), (PromptHits{.num_tokens = 8, .has_encoder = true}));
  ASSERT_TRUE(manager.Free(kC).ok());
  ASSERT_TRUE(manager.ForgetContent(kA).ok());
  manager.CheckInvariants();
  EXPECT_EQ(*manager.Add(kC, prompt), PromptHits{});
  for (const SlotId slot : {kA, kB, kC}) ASSERT_TRUE(manager.Free(slot).ok());
  manager.CheckInvariants();
  EXPECT_EQ(manager.pool().num_used(), 0);
}

TEST(BlockManagerPrefixTest, MaxHitTokensLimitsTheHits) {
  for (const PartialHits partial : {PartialHits::kNone, PartialHits::kCopied}) {
    BlockManager manager =
        ManagerOf({.prefix_tokens = PrefixTokens::kStored, .partial_hits = partial});
    const std::vector<int32_t> tokens = Tokens(1, 13);
    Compute(manager, kA, tokens);
    const bool in_blocks = partial == PartialHits::kCopied;
    for (const int most : {0, 3, 4, 7, 12, 100}) {
      const auto hits = manager.Add(kB, {.tokens = tokens, .max_hit_tokens = most});
      ASSERT_TRUE(hits.ok()) << hits.status();
      EXPECT_EQ(hits->num_tokens, in_blocks ? std::min(most, 12) : std::min(most, 12) / 4 * 4);
      ASSERT_TRUE(manager.Free(kB).ok());
    }
    EXPECT_THAT(
        std::string(manager.Add(kB, {.tokens = tokens, .max_hit_tokens = -1}).status().message()),
        HasSubstr("max_hit_tokens"));
    manager.CheckInvariants();
  }
}

TEST(BlockManagerPrefixTest, RejectedPromptChangesNothing) {
  BlockManager manager = ManagerOf();
  Compute(manager, kA, Tokens(1, 8));
  ASSERT_TRUE(manager.Free(kA).ok());     // cached: blocks 2, 1, in this order
  ASSERT_TRUE(manager.Add(kB, 24).ok());  // 6 of 17 free blocks
  ASSERT_TRUE(manager.Add(kC, 24).ok());
  // 5 free and 2 cached blocks remain. The prompt shares both cached blocks and needs 4 more.
  ASSERT_TRUE(manager.Append(kB, 0).ok());
  EXPECT_EQ(manager.pool().num_allocatable(), 7);
  ASSERT_TRUE(manager.Add(kA, {.tokens = Tokens(1, 24)}).ok());
  EXPECT_EQ(manager.pool().num_allocatable(), 1);
  ASSERT_TRUE(manager.Free(kA).ok());
  // In a smaller pool, one block is missing.
  BlockManager small = *BlockManager::Create({.num_blocks = 9,
                                              .block_size = 4,
                                              .num_slots = 3,
                                              .max_blocks = 6,
                                              .prefix_reuse = PrefixReuse::kOn});
  Compute(small, kA, Tokens(1, 8));
  ASSERT_TRUE(small.Free(kA).ok());
  ASSERT_TRUE(small.Add(kB, 16).ok());  // 4 of 8
  const absl::StatusOr<PromptHits> refused = small.Add(kA, {.tokens = Tokens(1, 20)});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(small.pool().num_cached(), 2);
  EXPECT_EQ(small.pool().num_used(), 4);
  EXPECT_FALSE(small.contains(kA));
  small.CheckInvariants();
  EXPECT_EQ(small.Add(kA, {.tokens = Tokens(1, 16)})->num_tokens, 8);
}

TEST(BlockManagerPrefixTest, AddMayAllocateOnlyAPartOfThePrompt) {
  BlockManager manager = ManagerOf();
  Compute(manager, kA, Tokens(1, 8));
  ASSERT_TRUE(manager.Add(kB, {.tokens = Tokens(1, 20), .num_new_tokens = 5}).ok());
  EXPECT_EQ(manager.num_tokens(kB), 13);  // 8 found + 5 new
  EXPECT_THAT(manager.blocks(kB), SizeIs(4));
  ASSERT_TRUE(manager.Append(kB, 7).ok());
  EXPECT_EQ(manager.num_tokens(kB), 20);
}

TEST(BlockManagerPrefixTest, RejectsInvalidPrompts) {
  BlockManager manager = ManagerOf();
  const auto message = [&](const SequencePrompt& prompt) {
    const absl::StatusOr<PromptHits> hits = manager.Add(kA, prompt);
    EXPECT_EQ(hits.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_FALSE(manager.contains(kA));
    return std::string(hits.status().message());
  };
  EXPECT_THAT(message({.tokens = Tokens(0, 25)}), HasSubstr("expected 0 to 24"));
  EXPECT_THAT(message({.num_new_tokens = -1}), HasSubstr("num_new_tokens must not be negative"));
  EXPECT_THAT(message({.num_encoder_tokens = -1}), HasSubstr("num_encoder_tokens"));
  EXPECT_THAT(message({.num_encoder_tokens = 3}), HasSubstr("need a cross group"));
  const RangeKey before = {.value = "", .first_token = -1, .num_tokens = 1};
  EXPECT_THAT(message({.range_keys = absl::MakeConstSpan(&before, 1)}), HasSubstr("first_token"));
  const RangeKey negative = {.value = "", .first_token = 1, .num_tokens = -4};
  EXPECT_THAT(message({.range_keys = absl::MakeConstSpan(&negative, 1)}), HasSubstr("got -4"));
  manager.CheckInvariants();
}

TEST(BlockManagerPrefixTest, RejectsCommitsBeyondTheAllocatedTokens) {
  BlockManager manager = ManagerOf();
  ASSERT_TRUE(manager.Add(kA, 5).ok());
  ASSERT_TRUE(manager.Commit(kA, Tokens(1, 3)).ok());
  const absl::Status status = manager.Commit(kA, Tokens(4, 3));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("tokens of slot 0 must have been allocated: expected 0 to 2, got 3"));
  EXPECT_EQ(manager.num_committed(kA), 3);
  EXPECT_EQ(manager.Commit(kB, {}).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(manager.CommitUnknown(kA, -1).code(), absl::StatusCode::kInvalidArgument);
}

TEST(BlockManagerPrefixTest, PartialHitsRequireStoredTokens) {
  const absl::StatusOr<BlockManager> manager =
      BlockManager::Create({.num_blocks = 9,
                            .num_slots = 1,
                            .max_blocks = 4,
                            .prefix_reuse = PrefixReuse::kOn,
                            .partial_hits = PartialHits::kCopied});
  EXPECT_EQ(manager.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(manager.status().message()), HasSubstr("partial_hits"));
}

TEST(BlockManagerPrefixTest, StepsAndPromptsDoNotAllocateMemory) {
  BlockManager manager = ManagerOf();
  const std::vector<int32_t> prompt = Tokens(1, 9);
  const std::vector<int32_t> sampled = {7};
  const auto round = [&] {
    ASSERT_TRUE(manager.Add(kA, {.tokens = prompt}).ok());
    ASSERT_TRUE(
        manager.Commit(kA, absl::MakeConstSpan(prompt).subspan(manager.num_committed(kA))).ok());
    for (int i = 0; i < 12; ++i) {
      ASSERT_TRUE(manager.Append(kA, 1).ok());
      manager.TakeUpdates();
      manager.TakeCopies();
      ASSERT_TRUE(manager.Commit(kA, sampled).ok());
    }
    ASSERT_TRUE(manager.Free(kA).ok());
  };
  round();
  AllocationCounter allocations;
  for (int i = 0; i < 20; ++i) round();
  EXPECT_EQ(allocations.count(), 0);
}

}  // namespace
}  // namespace reprise
