// Groups of layers in BlockManager: windows, chunks and cross attention with full attention.

#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/cache/blocks/block_manager.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr SlotId kA(0), kB(1);
constexpr KvGroupSpec kFull = {};
constexpr KvGroupSpec kCross = {.retention = KvRetention::kCross};
constexpr KvGroupSpec kWindow4 = {.retention = KvRetention::kSlidingWindow, .span = 4};
constexpr KvGroupSpec kChunk4 = {.retention = KvRetention::kChunkedLocal, .span = 4};

BlockManager ManagerOf(std::vector<KvGroupSpec> groups, BlockManagerOptions options = {}) {
  if (options.num_blocks == 0) options.num_blocks = 40;
  options.block_size = 2;
  options.num_slots = 3;
  options.max_blocks = 10;
  options.groups = std::move(groups);
  options.prefix_reuse = PrefixReuse::kOn;
  return *BlockManager::Create(options);
}

std::vector<int32_t> Tokens(int num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  for (int i = 0; i < num_tokens; ++i) tokens[i] = 100 + i;
  return tokens;
}

std::vector<int32_t> Row(const BlockManager& manager, SlotId slot, int group) {
  const absl::Span<const int32_t> blocks = AsInts(manager.blocks(slot, group));
  return {blocks.begin(), blocks.end()};
}

TEST(BlockManagerGroupsTest, GroupsHaveSeparateBlocksFromOnePool) {
  BlockManager manager = ManagerOf({kFull, kWindow4});
  ASSERT_TRUE(manager.Add(kA, 3).ok());
  EXPECT_THAT(Row(manager, kA, 0), ElementsAre(1, 2));
  EXPECT_THAT(Row(manager, kA, 1), ElementsAre(3, 4));
  const absl::Span<const BlockTableUpdate> updates = manager.TakeUpdates();
  ASSERT_THAT(updates, SizeIs(4));
  EXPECT_EQ(updates[0].group, 0);
  EXPECT_EQ(updates[3].group, 1);
  EXPECT_EQ(updates[3].column, 1);
  EXPECT_EQ(updates[3].block, BlockId(4));
  EXPECT_EQ(manager.table(1).row(kA)[1], BlockId(4));
  manager.CheckInvariants();
}

TEST(BlockManagerGroupsTest, CommitReleasesBlocksThatLeftTheWindow) {
  BlockManager manager = ManagerOf({kFull, kWindow4});
  ASSERT_TRUE(manager.Add(kA, 8).ok());
  manager.TakeUpdates();
  EXPECT_EQ(manager.pool().num_used(), 8);
  // No block is released for tokens in flight: the 8 tokens may still be truncated.
  EXPECT_EQ(manager.min_tokens(kA), 0);
  ASSERT_TRUE(manager.Commit(kA, Tokens(8)).ok());
  // The next token attends to positions 5, 6 and 7: blocks 2 and 3 of the row.
  EXPECT_THAT(Row(manager, kA, 1), ElementsAre(0, 0, 7, 8));
  EXPECT_THAT(Row(manager, kA, 0), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(manager.first_column(kA, 1), 2);
  EXPECT_EQ(manager.pool().num_used(), 6);
  const absl::Span<const BlockTableUpdate> updates = manager.TakeUpdates();
  ASSERT_THAT(updates, SizeIs(2));  // both become null blocks on the device
  EXPECT_EQ(updates[0].group, 1);
  EXPECT_EQ(updates[0].column, 0);
  EXPECT_EQ(updates[0].block, kNullBlock);
  EXPECT_EQ(updates[1].column, 1);
  manager.CheckInvariants();
}

TEST(BlockManagerGroupsTest, RejectsTruncationThatNeedsReleasedWindowBlocks) {
  BlockManager manager = ManagerOf({kFull, kWindow4});
  ASSERT_TRUE(manager.Add(kA, 8).ok());
  ASSERT_TRUE(manager.Commit(kA, Tokens(8)).ok());
  ASSERT_TRUE(manager.Append(kA, 3).ok());
  EXPECT_EQ(manager.min_tokens(kA), 7);  // token 7 attends to positions from 4, which is in block 2
  EXPECT_TRUE(manager.Truncate(kA, 8).ok());
  const absl::Status refused = manager.Truncate(kA, 6);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("expected at least 7, got 6"));
  EXPECT_EQ(manager.num_tokens(kA), 8);
  EXPECT_TRUE(manager.Truncate(kA, 7).ok());
  EXPECT_EQ(manager.num_committed(kA), 7);
  manager.CheckInvariants();
}

TEST(BlockManagerGroupsTest, AllBlocksOfAChunkAreReleasedTogether) {
  BlockManager manager = ManagerOf({kChunk4});
  ASSERT_TRUE(manager.Add(kA, 7).ok());
  ASSERT_TRUE(manager.Commit(kA, Tokens(7)).ok());
  EXPECT_THAT(Row(manager, kA, 0), ElementsAre(0, 0, 3, 4));  // chunk 4 .. 7
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  ASSERT_TRUE(manager.Commit(kA, {5}).ok());
  EXPECT_THAT(Row(manager, kA, 0), ElementsAre(0, 0, 0, 0));  // the next token begins chunk 8
  EXPECT_EQ(manager.pool().num_used(), 0);
  ASSERT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_THAT(manager.blocks(kA), SizeIs(5));
  manager.CheckInvariants();
}

TEST(BlockManagerGroupsTest, HitsAreThePrefixCachedInAllGroups) {
  BlockManager manager = ManagerOf({kFull, kWindow4});
  ASSERT_TRUE(manager.Add(kA, 12).ok());
  ASSERT_TRUE(manager.Commit(kA, Tokens(12)).ok());
  ASSERT_TRUE(manager.Free(kA).ok());
  // 12 of 13 tokens: the full group has all 6 blocks, and the window has the last two, which are
  // enough.
  const absl::StatusOr<PromptHits> hits = manager.Add(kA, {.tokens = Tokens(13)});
  EXPECT_EQ(hits->num_tokens, 12);
  EXPECT_EQ(manager.first_column(kA, 1), 4);  // token 12 attends to positions from 9
  ASSERT_TRUE(manager.Free(kA).ok());
  // A shorter prompt finds blocks that the window released earlier, until they are reused.
  EXPECT_EQ(manager.Add(kA, {.tokens = Tokens(9)})->num_tokens, 8);
  EXPECT_EQ(manager.first_column(kA, 1), 2);
  ASSERT_TRUE(manager.Free(kA).ok());
  manager.CheckInvariants();
}

TEST(BlockManagerGroupsTest, EvictedWindowBlocksShortenTheHitsOfAllGroups) {
  BlockManager manager = ManagerOf({kFull, kWindow4}, {.num_blocks = 21});  // 20 allocatable
  ASSERT_TRUE(manager.Add(kA, 12).ok());                                    // 12
  ASSERT_TRUE(manager.Commit(kA, Tokens(12)).ok());
  // 4 blocks of the window are cached, 8 are used and 8 are free. 12 are needed, so all 4 are
  // evicted.
  ASSERT_TRUE(manager.Add(kB, 12).ok());
  ASSERT_TRUE(manager.Free(kB).ok());
  EXPECT_EQ(manager.Add(kB, {.tokens = Tokens(9)})->num_tokens, 0);
  ASSERT_TRUE(manager.Free(kB).ok());
  EXPECT_EQ(manager.Add(kB, {.tokens = Tokens(14)})->num_tokens, 12);
  manager.CheckInvariants();
}

TEST(BlockManagerGroupsTest, ChunkedPromptNeedsFewBlocksInAWindow) {
  BlockManager manager = ManagerOf({kWindow4}, {.num_blocks = 6});  // 5 blocks, of 2 tokens
  const std::vector<int32_t> tokens = Tokens(20);
  EXPECT_EQ(manager.Add(kA, {.tokens = tokens}).status().code(),
            absl::StatusCode::kInvalidArgument);  // needs 10 blocks at the same time
  ASSERT_TRUE(manager.Add(kA, {.tokens = tokens, .num_new_tokens = 4}).ok());
  for (int begin = 0; begin < 20; begin += 4) {
    ASSERT_TRUE(manager.Append(kA, begin == 0 ? 0 : 4).ok()) << begin;
    ASSERT_TRUE(manager.Commit(kA, absl::MakeConstSpan(tokens).subspan(begin, 4)).ok());
    manager.CheckInvariants();
  }
  EXPECT_EQ(manager.num_committed(kA), 20);
}

TEST(BlockManagerGroupsTest, AppendSucceedsAfterCommitsReleaseWindowBlocks) {
  BlockManager manager = ManagerOf({kWindow4}, {.num_blocks = 6});
  ASSERT_TRUE(manager.Add(kA, 10).ok());  // all 5 blocks
  EXPECT_EQ(manager.Append(kA, 1).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(manager.Commit(kA, Tokens(10)).ok());
  EXPECT_TRUE(manager.Append(kA, 1).ok());
  EXPECT_EQ(manager.max_tokens(/*num_uncommitted=*/2), 20);  // the length of a row
  EXPECT_EQ(manager.max_tokens(), 10);                       // tokens are never committed
}

TEST(BlockManagerGroupsTest, EncoderBlocksAreWrittenOnceAndShared) {
  BlockManager manager = ManagerOf({kFull, kCross});
  const ExtraKey input = {.kind = ExtraKeyKind::kAudio, .value = "a song"};
  const std::vector<int32_t> tokens = Tokens(3);
  const SequencePrompt prompt = {
      .tokens = tokens, .num_encoder_tokens = 5, .encoder_keys = absl::MakeConstSpan(&input, 1)};
  EXPECT_EQ(*manager.Add(kA, prompt), PromptHits{});
  EXPECT_THAT(Row(manager, kA, 1), SizeIs(3));  // ceil(5 / 2)
  EXPECT_EQ(manager.num_encoder_tokens(kA), 5);
  // The blocks are not found before they have been written.
  EXPECT_FALSE(manager.Add(kB, prompt)->has_encoder);
  ASSERT_TRUE(manager.Free(kB).ok());
  ASSERT_TRUE(manager.CommitEncoder(kA).ok());
  EXPECT_TRUE(manager.Add(kB, prompt)->has_encoder);
  EXPECT_THAT(Row(manager, kB, 1), Row(manager, kA, 1));
  // Neither growing nor freeing one of the users changes the blocks.
  ASSERT_TRUE(manager.Append(kA, 4).ok());
  EXPECT_THAT(Row(manager, kA, 1), Row(manager, kB, 1));
  ASSERT_TRUE(manager.Free(kA).ok());
  manager.CheckInvariants();
  ASSERT_TRUE(manager.Free(kB).ok());
  EXPECT_TRUE(manager.Add(kB, prompt)->has_encoder);  // cached
}

TEST(BlockManagerGroupsTest, DecoderHitsDependOnTheEncoderInput) {
  BlockManager manager = ManagerOf({kFull, kCross});
  const ExtraKey one = {.kind = ExtraKeyKind::kAudio, .value = "one"};
  const ExtraKey two = {.kind = ExtraKeyKind::kAudio, .value = "two"};
  const auto hits_with = [&](absl::Span<const ExtraKey> keys, int num_encoder_tokens) {
    const absl::StatusOr<PromptHits> hits = manager.Add(
        kB, {.tokens = Tokens(7), .num_encoder_tokens = num_encoder_tokens, .encoder_keys = keys});
    EXPECT_TRUE(hits.ok()) << hits.status();
    EXPECT_TRUE(manager.Free(kB).ok());
    return hits->num_tokens;
  };
  ASSERT_TRUE(manager
                  .Add(kA, {.tokens = Tokens(7),
                            .num_encoder_tokens = 4,
                            .encoder_keys = absl::MakeConstSpan(&one, 1)})
                  .ok());
  ASSERT_TRUE(manager.Commit(kA, Tokens(7)).ok());
  EXPECT_EQ(hits_with(absl::MakeConstSpan(&one, 1), 4), 6);
  EXPECT_EQ(hits_with(absl::MakeConstSpan(&one, 1), 3), 0);
  EXPECT_EQ(hits_with(absl::MakeConstSpan(&two, 1), 4), 0);
  EXPECT_EQ(hits_with({}, 4), 0);  // an input without a key is not found
  EXPECT_EQ(hits_with({}, 0), 0);
}

TEST(BlockManagerGroupsTest, ForgottenEncoderIsNotFoundEvenIfCommittedLater) {
  BlockManager manager = ManagerOf({kFull, kCross});
  const ExtraKey input = {.kind = ExtraKeyKind::kAudio, .value = "audio"};
  const std::vector<int32_t> tokens = Tokens(3);
  const SequencePrompt prompt = {
      .tokens = tokens, .num_encoder_tokens = 5, .encoder_keys = absl::MakeConstSpan(&input, 1)};
  ASSERT_TRUE(manager.Add(kA, prompt).ok());
  manager.ForgetPrefixes();
  ASSERT_TRUE(manager.CommitEncoder(kA).ok());  // keys of the old weights
  EXPECT_FALSE(manager.Add(kB, prompt)->has_encoder);
  ASSERT_TRUE(manager.CommitEncoder(kB).ok());
  EXPECT_TRUE(manager.Add(SlotId(2), prompt)->has_encoder);
  manager.CheckInvariants();
}

TEST(BlockManagerGroupsTest, TokensWithoutIdsDoNotPreventEncoderHits) {
  BlockManager manager = ManagerOf({kFull, kCross});
  const ExtraKey input = {.kind = ExtraKeyKind::kAudio, .value = "audio"};
  const std::vector<int32_t> tokens = Tokens(3);
  const SequencePrompt prompt = {
      .tokens = tokens, .num_encoder_tokens = 5, .encoder_keys = absl::MakeConstSpan(&input, 1)};
  ASSERT_TRUE(manager.Add(kA, prompt).ok());
  ASSERT_TRUE(manager.CommitUnknown(kA, 3).ok());
  ASSERT_TRUE(manager.CommitEncoder(kA).ok());
  EXPECT_TRUE(manager.Add(kB, prompt)->has_encoder);
}

TEST(BlockManagerGroupsTest, RejectsGroupsAndRowsThatDoNotExist) {
  BlockManager manager = ManagerOf({kFull, kWindow4});
  ASSERT_TRUE(manager.Add(kA, 7).ok());
  std::vector<int32_t> row(6, -7);
  ASSERT_TRUE(manager.WriteRow(kA, 1, absl::MakeSpan(row)).ok());
  EXPECT_THAT(row, ElementsAre(5, 6, 7, 8, 0, 0));
  const auto message = [&](SlotId slot, int group, int size, absl::StatusCode code) {
    std::vector<int32_t> bad(size, -7);
    const absl::Status status = manager.WriteRow(slot, group, absl::MakeSpan(bad));
    EXPECT_EQ(status.code(), code);
    EXPECT_THAT(bad, testing::Each(-7));
    return std::string(status.message());
  };
  EXPECT_THAT(message(kA, 2, 6, absl::StatusCode::kInvalidArgument),
              HasSubstr("group must exist: expected 0 to 1, got 2"));
  EXPECT_THAT(message(kA, -1, 6, absl::StatusCode::kInvalidArgument), HasSubstr("got -1"));
  EXPECT_THAT(message(kA, 0, 3, absl::StatusCode::kInvalidArgument),
              HasSubstr("expected at least 4 entries, got 3"));
  EXPECT_THAT(message(kB, 0, 6, absl::StatusCode::kNotFound), HasSubstr("slot 1 holds no"));
  EXPECT_EQ(manager.CommitEncoder(kA).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_DEATH(manager.blocks(kA, 2), "group 2 does not exist");
}

TEST(BlockManagerGroupsTest, RejectsOptionsThatDoNotFitTheGroups) {
  const auto message = [](const BlockManagerOptions& options) {
    const absl::StatusOr<BlockManager> manager = BlockManager::Create(options);
    EXPECT_EQ(manager.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(manager.status().message());
  };
  const BlockManagerOptions good = {.num_blocks = 10, .num_slots = 2, .max_blocks = 4};
  BlockManagerOptions bad = good;
  bad.groups = {{.retention = KvRetention::kSlidingWindow}};
  EXPECT_THAT(message(bad), HasSubstr("span of group 0"));
  bad.groups = {kCross};
  EXPECT_THAT(message(bad), HasSubstr("groups must hold the tokens"));
  bad.groups = {kFull, kFull, kFull};
  bad.num_blocks = 3;
  EXPECT_THAT(message(bad), HasSubstr("expected at least 4, got 3 with 3 groups"));
  bad = good;
  bad.num_slots = std::numeric_limits<int>::max();
  EXPECT_THAT(message(bad), HasSubstr("num_slots * row_stride is too large"));
}

TEST(BlockManagerGroupsTest, BlocksOfASequenceAreCountedOverAllGroups) {
  const BlockManager manager = ManagerOf({kFull, kWindow4, kCross});
  // 9 tokens have 5 blocks. With 8 committed tokens, the window has released 2 of them. The 3
  // encoder tokens have 2 blocks.
  EXPECT_EQ(manager.NumBlocksFor(9, 0), 10);
  EXPECT_EQ(manager.NumBlocksFor(9, 8), 8);
  EXPECT_EQ(manager.NumBlocksFor(9, 8, 3), 10);
}

}  // namespace
}  // namespace reprise
