#include "reprise/runner/slots/slot_mirror.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

const RunnerShape kLimits = {.max_num_seqs = 2,
                             .max_num_tokens = 6,
                             .max_seq_len = 8,
                             .vocab_size = 100,
                             .num_blocks = 5,
                             .block_size = 4};

constexpr int32_t kPrompt[] = {5, 6, 7};
constexpr SlotJoin kJoin0[] = {{.slot = SlotId(0), .seq_len = 0, .prompt_len = 3}};
constexpr BlockTableUpdate kBlock0[] = {{.slot = SlotId(0), .column = 0, .block = BlockId(1)}};

ScheduledBatch Enter() {
  static const ScheduledRow rows[] = {{.slot = SlotId(0), .tokens = kPrompt}};
  return {.joins = kJoin0, .updates = kBlock0, .rows = rows};
}

std::string Refused(SlotMirror& mirror, const ScheduledBatch& batch) {
  const auto demand = mirror.Advance(batch);
  EXPECT_EQ(demand.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(demand.status().message());
}

TEST(SlotMirrorTest, FollowsLengthsWithoutTheDevice) {
  SlotMirror mirror(kLimits);
  const auto prefill = mirror.Advance(Enter());
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_EQ(prefill->shape.num_tokens, 3);
  EXPECT_EQ(prefill->shape.max_query_len, 3);
  EXPECT_EQ(prefill->features, SamplingFeatures::kGreedy);

  const ScheduledRow decode[] = {{.slot = SlotId(0)}};
  const auto step = mirror.Advance({.rows = decode});
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(step->shape.num_seqs, 1);
  EXPECT_EQ(step->shape.max_query_len, 1);
  EXPECT_EQ(step->shape.max_seq_len, 4);
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 4);
}

// ---- Lengths stated by a join.

TEST(SlotMirrorTest, RejectsAJoinWithoutItsLengths) {
  SlotMirror mirror(kLimits);
  const SlotJoin forgets_hits[] = {{.slot = SlotId(0), .prompt_len = 3}};
  EXPECT_THAT(Refused(mirror, {.joins = forgets_hits}),
              HasSubstr("joins: seq_len of slot 0 must be stated"));
  const SlotJoin forgets_prompt[] = {{.slot = SlotId(0), .seq_len = 0}};
  EXPECT_THAT(Refused(mirror, {.joins = forgets_prompt}),
              HasSubstr("joins: prompt_len of slot 0 must be stated"));
}

TEST(SlotMirrorTest, RejectsAPromptThatDoesNotFit) {
  SlotMirror mirror(kLimits);
  const SlotJoin long_prompt[] = {JoinOf(SlotId(0), {}, 9)};
  EXPECT_THAT(
      Refused(mirror, {.joins = long_prompt}),
      HasSubstr("prompt_len of slot 0 must be in [0, 8], from its seq_len to max_seq_len, got 9"));
  const SlotJoin short_prompt[] = {JoinOf(SlotId(0), {.num_tokens = 4}, 3)};
  EXPECT_THAT(Refused(mirror, {.joins = short_prompt}), HasSubstr("[4, 8]"));
}

TEST(SlotMirrorTest, RejectsAnOutputOfAChunkThatIsNotTheLast) {
  SlotMirror mirror(kLimits);
  const ScheduledRow forgotten[] = {
      {.slot = SlotId(0), .tokens = absl::MakeConstSpan(kPrompt).first(2)}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = forgotten}),
              HasSubstr("rows: output of slot 0 must be RowOutput::kNone before the end of its "
                        "prompt: expected a row up to token 3 (prompt_len of its join), got one "
                        "that ends at token 2"));
  ScheduledRow chunk[] = {forgotten[0]};
  chunk[0].output = RowOutput::kNone;
  ASSERT_TRUE(mirror.Advance({.joins = kJoin0, .updates = kBlock0, .rows = chunk}).ok());
  const ScheduledRow decodes_too_early[] = {{.slot = SlotId(0)}};
  EXPECT_THAT(Refused(mirror, {.rows = decodes_too_early}), HasSubstr("no last token yet"));
  const ScheduledRow last[] = {{.slot = SlotId(0), .tokens = absl::MakeConstSpan(kPrompt).last(1)}};
  EXPECT_TRUE(mirror.Advance({.rows = last}).ok());
}

TEST(SlotMirrorTest, RejectsARowThatIgnoresAPrefixHit) {
  // Two of three tokens are cached, but the join states a seq_len of 0. The row with the last token
  // would overwrite the keys of the first tokens.
  SlotMirror mirror(kLimits);
  const ScheduledRow rest[] = {
      {.slot = SlotId(0), .tokens = absl::MakeConstSpan(kPrompt).subspan(2)}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = rest}),
              HasSubstr("ends at token 1"));
  const SlotJoin join[] = {JoinOf(SlotId(0), {.num_tokens = 2}, 3)};
  EXPECT_TRUE(mirror.Advance({.joins = join, .updates = kBlock0, .rows = rest}).ok());
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 3);
}

TEST(SlotMirrorTest, RejectsADecodeAfterALastChunkWithoutOutput) {
  SlotMirror mirror(kLimits);
  const ScheduledRow wrong[] = {{.slot = SlotId(0), .tokens = kPrompt, .output = RowOutput::kNone}};
  ASSERT_TRUE(mirror.Advance({.joins = kJoin0, .updates = kBlock0, .rows = wrong}).ok());
  const ScheduledRow decode[] = {{.slot = SlotId(0)}};
  EXPECT_THAT(Refused(mirror, {.rows = decode}), HasSubstr("no last token yet"));
  const int32_t forced[] = {9};
  const ScheduledRow next[] = {{.slot = SlotId(0), .tokens = forced}};
  EXPECT_TRUE(mirror.Advance({.rows = next}).ok());
}

TEST(SlotMirrorTest, AcceptsChunksOfALaterPrompt) {
  SlotMirror mirror(kLimits);
  ASSERT_TRUE(mirror.Advance(Enter()).ok());
  const BlockTableUpdate second[] = {{.slot = SlotId(0), .column = 1, .block = BlockId(2)}};
  const int32_t turn[] = {8, 9};
  const ScheduledRow chunk[] = {{.slot = SlotId(0), .tokens = turn, .output = RowOutput::kNone}};
  ASSERT_TRUE(mirror.Advance({.updates = second, .rows = chunk}).ok());
  const ScheduledRow last[] = {{.slot = SlotId(0), .tokens = turn}};
  EXPECT_TRUE(mirror.Advance({.rows = last}).ok());
}

TEST(SlotMirrorTest, RejectedBatchChangesNothing) {
  SlotMirror mirror(kLimits);
  ASSERT_TRUE(mirror.Advance(Enter()).ok());
  const SlotId leaves[] = {SlotId(0)};
  // The sequence has just left.
  const ScheduledRow rows[] = {{.slot = SlotId(0), .tokens = kPrompt}};
  EXPECT_THAT(Refused(mirror, {.leaves = leaves, .rows = rows}),
              HasSubstr("slot 0 has no sequence"));
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 3);  // the rejected batch did not remove the sequence
}

TEST(SlotMirrorTest, ASlotMayLeaveAndBeJoinedInOneBatch) {
  SlotMirror mirror(kLimits);
  ASSERT_TRUE(mirror.Advance(Enter()).ok());
  const SlotId leaves[] = {SlotId(0)};
  ScheduledBatch again = Enter();
  EXPECT_THAT(Refused(mirror, again), HasSubstr("slot 0 is taken"));
  again.leaves = leaves;
  EXPECT_TRUE(mirror.Advance(again).ok());
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 3);
}

TEST(SlotMirrorTest, NamesTheFeaturesThatSamplingNeeds) {
  SlotMirror mirror(kLimits);
  const SlotJoin join[] = {JoinOf(SlotId(0), {}, 3, {.temperature = 0.5f})};
  ScheduledRow row[] = {{.slot = SlotId(0), .tokens = kPrompt, .output = RowOutput::kNone}};
  auto demand = mirror.Advance({.joins = join, .updates = kBlock0, .rows = row});
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->features, SamplingFeatures::kGreedy);  // no row samples yet
  const int32_t last[] = {9};
  row[0] = {.slot = SlotId(0), .tokens = last};
  demand = mirror.Advance({.rows = row});
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->features, SamplingFeatures::kGeneral);
}

TEST(SlotMirrorTest, CountsEarlierLogitsAndRejectsTooManyWithoutChanges) {
  RunnerShape limits = kLimits;
  limits.max_earlier_logits = 2;
  SlotMirror mirror(limits);
  ScheduledRow rows[] = {{.slot = SlotId(0),
                          .tokens = kPrompt,
                          .output = RowOutput::kNone,
                          .logits = RowLogits::kAll,
                          .next_token = 99}};
  const ScheduledBatch batch = {.joins = kJoin0, .updates = kBlock0, .rows = rows};
  const auto demand = mirror.Advance(batch);
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->shape.num_earlier_logits, 2);

  const SlotId leaves[] = {SlotId(0)};
  ScheduledBatch again = batch;
  again.leaves = leaves;
  const int32_t four[] = {1, 2, 3, 4};
  rows[0].tokens = four;
  EXPECT_THAT(Refused(mirror, again),
              HasSubstr("max_earlier_logits: expected at most 2, got 3 or more"));
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 3);
  SlotMirror without(kLimits);
  EXPECT_THAT(Refused(without, batch), HasSubstr("expected at most 0, got 3 or more"));

  // A row with one token has no earlier tokens.
  const int32_t one[] = {7};
  rows[0] = {
      .slot = SlotId(0), .tokens = one, .output = RowOutput::kNone, .logits = RowLogits::kAll};
  const auto plain = without.Advance(batch);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->shape.num_earlier_logits, 0);
}

TEST(SlotMirrorTest, RejectsANextTokenOutsideTheVocabularyOrInARowThatSamples) {
  SlotMirror mirror(kLimits);
  ScheduledRow rows[] = {{.slot = SlotId(0), .tokens = kPrompt, .next_token = 5}};
  const ScheduledBatch batch = {.joins = kJoin0, .updates = kBlock0, .rows = rows};
  EXPECT_THAT(Refused(mirror, batch), HasSubstr("next_token of slot 0 is for rows with"));
  rows[0].output = RowOutput::kNone;
  for (const int32_t wild : {-2, 100}) {
    rows[0].next_token = wild;
    EXPECT_THAT(Refused(mirror, batch), HasSubstr("must be -1 or in [0, 100), got"));
  }
  rows[0].next_token = 99;
  const auto demand = mirror.Advance(batch);
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->shape.num_earlier_logits, 0);
}

// The slot's last token is older than the chunk, so no row may continue from it.
TEST(SlotMirrorTest, ARowWithoutAnOutputLeavesNoLastToken) {
  SlotMirror mirror(kLimits);
  ScheduledRow rows[] = {{.slot = SlotId(0), .tokens = kPrompt}};
  ASSERT_TRUE(mirror.Advance({.joins = kJoin0, .updates = kBlock0, .rows = rows}).ok());
  const int32_t chunk[] = {7};
  rows[0] = {.slot = SlotId(0), .tokens = chunk, .output = RowOutput::kNone};
  ASSERT_TRUE(mirror.Advance({.rows = rows}).ok());
  rows[0] = {.slot = SlotId(0)};
  EXPECT_THAT(Refused(mirror, {.rows = rows}),
              HasSubstr("slot 0 has no last token yet, so the row must have tokens"));
  rows[0] = {.slot = SlotId(0), .tokens = chunk};
  const BlockTableUpdate second_block[] = {{.slot = SlotId(0), .column = 1, .block = BlockId(2)}};
  ASSERT_TRUE(mirror.Advance({.updates = second_block, .rows = rows}).ok());
  rows[0] = {.slot = SlotId(0)};
  EXPECT_TRUE(mirror.Advance({.rows = rows}).ok());
}

TEST(SlotMirrorTest, RejectsBadBatchesNamingThePartAndTheValue) {
  SlotMirror mirror(kLimits);
  const SlotId bad_leave[] = {SlotId(2)};
  EXPECT_THAT(Refused(mirror, {.leaves = bad_leave}),
              HasSubstr("leaves: slot must be in [0, 2), got 2"));
  const SlotJoin bad_join[] = {{.slot = SlotId(-1)}};
  EXPECT_THAT(Refused(mirror, {.joins = bad_join}), HasSubstr("joins: slot"));
  const SlotJoin long_join[] = {{.slot = SlotId(0), .seq_len = 9, .prompt_len = 9}};
  EXPECT_THAT(Refused(mirror, {.joins = long_join}), HasSubstr("[0, 8], got 9"));
  const SlotJoin undrafted[] = {
      {.slot = SlotId(0), .seq_len = 3, .prompt_len = 4, .num_undrafted = 4}};
  EXPECT_THAT(Refused(mirror, {.joins = undrafted}), HasSubstr("num_undrafted of slot 0"));
  const SlotJoin hot[] = {JoinOf(SlotId(0), {}, 3, {.temperature = -1.0f})};
  EXPECT_THAT(Refused(mirror, {.joins = hot}), HasSubstr("temperature"));
  const SlotJoin no_mass[] = {JoinOf(SlotId(0), {}, 3, {.top_p = 0.0f})};
  EXPECT_THAT(Refused(mirror, {.joins = no_mass}), HasSubstr("sampling of slot 0: top_p"));
  const SlotJoin below_zero[] = {JoinOf(SlotId(0), {}, 3, {.top_k = -1})};
  EXPECT_THAT(Refused(mirror, {.joins = below_zero}), HasSubstr("top_k"));
  EXPECT_THAT(Refused(mirror, {.updates = kBlock0}), HasSubstr("updates: slot 0 has no sequence"));
  const BlockTableUpdate gap[] = {{.slot = SlotId(0), .column = 1, .block = BlockId(1)}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = gap}), HasSubstr("got 1"));
  const BlockTableUpdate null_block[] = {{.slot = SlotId(0), .column = 0, .block = kNullBlock}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = null_block}),
              HasSubstr("[1, 5), got 0"));

  for (const BlockCopy& copy : {BlockCopy{1, 5}, BlockCopy{0, 1}, BlockCopy{-1, 2}}) {
    EXPECT_THAT(Refused(mirror, {.copies = absl::MakeConstSpan(&copy, 1)}),
                HasSubstr(copy.src < 1 ? "copies: src blocks must be in [1, 5), got"
                                       : "copies: dst blocks must be in [1, 5), got"));
  }

  const ScheduledRow stranger[] = {{.slot = SlotId(1), .tokens = kPrompt}};
  EXPECT_THAT(Refused(mirror, {.rows = stranger}), HasSubstr("rows: slot 1 has no sequence"));
  const ScheduledRow blind[] = {{.slot = SlotId(0)}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = blind}),
              HasSubstr("no last token yet"));
  const ScheduledRow twice[] = {{.slot = SlotId(0), .tokens = kPrompt},
                                {.slot = SlotId(0), .tokens = kPrompt}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = twice}),
              HasSubstr("occurs twice"));
  const int32_t wild[] = {100};
  const ScheduledRow wild_row[] = {{.slot = SlotId(0), .tokens = wild}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = wild_row}),
              HasSubstr("[0, 100), got 100"));
  const int32_t five[] = {1, 2, 3, 4, 5};
  const ScheduledRow five_row[] = {{.slot = SlotId(0), .tokens = five}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = kBlock0, .rows = five_row}),
              HasSubstr("group 0: expected room for 5 tokens, got 1 blocks of 4"));
  const int32_t nine[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const ScheduledRow nine_row[] = {{.slot = SlotId(0), .tokens = nine}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .rows = nine_row}),
              HasSubstr("at most 8 tokens, got 9"));
  const int32_t seven[] = {1, 2, 3, 4, 5, 6, 7};
  const ScheduledRow seven_row[] = {{.slot = SlotId(0), .tokens = seven}};
  const BlockTableUpdate two[] = {{.slot = SlotId(0), .column = 0, .block = BlockId(1)},
                                  {.slot = SlotId(0), .column = 1, .block = BlockId(2)}};
  EXPECT_THAT(Refused(mirror, {.joins = kJoin0, .updates = two, .rows = seven_row}),
              HasSubstr("at most 6, got 7"));
}

// Full attention, a window of 5 tokens, chunks of 8 tokens and an encoder's keys, in blocks of 4
// tokens.
const RunnerShape kGroups = {.max_num_seqs = 1,
                             .max_num_tokens = 24,
                             .max_seq_len = 24,
                             .vocab_size = 100,
                             .num_blocks = 50,
                             .block_size = 4,
                             .groups = {{},
                                        {.retention = KvRetention::kSlidingWindow, .span = 5},
                                        {.retention = KvRetention::kChunkedLocal, .span = 8},
                                        {.retention = KvRetention::kCross}},
                             .max_encoder_tokens = 10,
                             .max_encoder_step_tokens = 10};

// Fills columns [begin, end) of the group with distinct blocks.
void Fill(int group, int begin, int end, std::vector<BlockTableUpdate>& updates) {
  for (int column = begin; column < end; ++column) {
    updates.push_back({.slot = SlotId(0),
                       .column = column,
                       .block = BlockId(1 + 6 * group + column),
                       .group = group});
  }
}

class SlotMirrorGroupsTest : public testing::Test {
 protected:
  // Returns the error for a row at position 17 of a sequence whose first 17 tokens are cached. The
  // row's window needs positions from 13 (column 3), its chunk needs positions from 16 (column 4).
  std::string JoinAt17(std::vector<BlockTableUpdate> updates) {
    const SlotJoin join[] = {{.slot = SlotId(0), .seq_len = 17, .prompt_len = 18}};
    const ScheduledRow row[] = {{.slot = SlotId(0), .tokens = token_}};
    const auto demand = mirror_.Advance({.joins = join, .updates = updates, .rows = row});
    return demand.ok() ? "" : std::string(demand.status().message());
  }

  const std::vector<int32_t> token_ = {1};
  SlotMirror mirror_{kGroups};
};

TEST_F(SlotMirrorGroupsTest, ColumnsBeforeTheWindowAndTheChunkMayBeNull) {
  std::vector<BlockTableUpdate> updates;
  Fill(0, 0, 5, updates);
  Fill(1, 3, 5, updates);
  Fill(2, 4, 5, updates);
  EXPECT_EQ(JoinAt17(updates), "");
}

TEST_F(SlotMirrorGroupsTest, ColumnsThatTheFirstQueryReadsMustNotBeNull) {
  std::vector<BlockTableUpdate> updates;
  Fill(0, 0, 5, updates);
  Fill(1, 4, 5, updates);
  Fill(2, 4, 5, updates);
  EXPECT_THAT(JoinAt17(updates), HasSubstr("group 1: expected columns from 3 on, got them from 4"));
  updates.clear();
  Fill(0, 0, 5, updates);
  Fill(1, 3, 5, updates);
  EXPECT_THAT(JoinAt17(updates), HasSubstr("group 2: expected room for 18 tokens, got 0 blocks"));
  updates.clear();
  Fill(0, 1, 5, updates);
  EXPECT_THAT(JoinAt17(updates), HasSubstr("group 0 must be in [0, 0]"));
}

TEST_F(SlotMirrorGroupsTest, OnlyUnneededColumnsMayBeCleared) {
  std::vector<BlockTableUpdate> updates;
  for (int group : {0, 1, 2}) Fill(group, 0, 5, updates);
  ASSERT_EQ(JoinAt17(updates), "");
  const auto clear = [&](int column, int group) -> std::string {
    const BlockTableUpdate update[] = {
        {.slot = SlotId(0), .column = column, .block = kNullBlock, .group = group}};
    const auto demand = mirror_.Advance({.updates = update});
    return demand.ok() ? "" : std::string(demand.status().message());
  };
  // After 18 tokens, the window needs positions from 14.
  EXPECT_EQ(clear(0, 1), "");
  EXPECT_EQ(clear(1, 1), "");
  EXPECT_EQ(clear(2, 1), "");
  EXPECT_THAT(clear(3, 1), HasSubstr("while the sequence needs it: expected one in [0, 3), got 3"));
  EXPECT_EQ(clear(3, 2), "");
  EXPECT_THAT(clear(4, 2), HasSubstr("[0, 4), got 4"));
  EXPECT_THAT(clear(0, 0), HasSubstr("block of slot 0 must be in [1, 50), got 0"));
  const ScheduledRow row[] = {{.slot = SlotId(0)}};
  EXPECT_TRUE(mirror_.Advance({.rows = row}).ok());
}

TEST_F(SlotMirrorGroupsTest, RejectsARowBeforeItsEncode) {
  const SlotJoin join[] = {
      {.slot = SlotId(0), .seq_len = 0, .prompt_len = 1, .num_encoder_tokens = 5}};
  std::vector<BlockTableUpdate> updates;
  for (int group : {0, 1, 2}) Fill(group, 0, 1, updates);
  Fill(3, 0, 2, updates);
  const ScheduledRow row[] = {{.slot = SlotId(0), .tokens = token_}};
  EXPECT_THAT(Refused(mirror_, {.joins = join, .updates = updates, .rows = row}),
              HasSubstr("joined with 5 encoder tokens, which are not encoded yet"));
  const std::vector<int32_t> five = {1, 2, 3, 4, 5};
  const ScheduledEncode encode[] = {{.slot = SlotId(0), .tokens = five}};
  const auto demand =
      mirror_.Advance({.joins = join, .updates = updates, .encodes = encode, .rows = row});
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->num_encoder_tokens, 5);
  EXPECT_THAT(Refused(mirror_, {.encodes = encode}), HasSubstr("must not be encoded"));

  const SlotId leave[] = {SlotId(0)};
  const SlotJoin cached[] = {{.slot = SlotId(0),
                              .seq_len = 0,
                              .prompt_len = 1,
                              .num_encoder_tokens = 5,
                              .encoder_is_cached = 1}};
  EXPECT_TRUE(
      mirror_.Advance({.leaves = leave, .joins = cached, .updates = updates, .rows = row}).ok());
}

TEST_F(SlotMirrorGroupsTest, RejectsInvalidEncodes) {
  const std::vector<int32_t> five = {1, 2, 3, 4, 5};
  const ScheduledEncode encode[] = {{.slot = SlotId(0), .tokens = five}};
  EXPECT_THAT(Refused(mirror_, {.encodes = encode}), HasSubstr("encodes: slot 0 has no sequence"));
  const SlotJoin other[] = {
      {.slot = SlotId(0), .seq_len = 0, .prompt_len = 1, .num_encoder_tokens = 6}};
  EXPECT_THAT(Refused(mirror_, {.joins = other, .encodes = encode}),
              HasSubstr("expected 6, got 5"));
  const SlotJoin join[] = {
      {.slot = SlotId(0), .seq_len = 0, .prompt_len = 1, .num_encoder_tokens = 5}};
  EXPECT_THAT(Refused(mirror_, {.joins = join, .encodes = encode}),
              HasSubstr("cross group 3: expected room for 5 tokens, got 0 blocks of 4"));
  const SlotJoin beyond[] = {
      {.slot = SlotId(0), .seq_len = 0, .prompt_len = 1, .num_encoder_tokens = 11}};
  EXPECT_THAT(Refused(mirror_, {.joins = beyond}), HasSubstr("[0, 10], got 11"));
  const std::vector<int32_t> wild = {1, 2, 3, 4, 100};
  const ScheduledEncode wild_encode[] = {{.slot = SlotId(0), .tokens = wild}};
  EXPECT_THAT(Refused(mirror_, {.joins = join, .encodes = wild_encode}),
              HasSubstr("encodes: token of slot 0"));
}

// ---- Embeddings, and positions of several dimensions.

RunnerShape LimitsWithEmbeddings() {
  RunnerShape limits = kLimits;
  limits.embeddings = {.dim = 3, .dtype = DType::kBFloat16};
  limits.num_position_dims = 2;
  limits.max_position = 8;
  return limits;
}

constexpr int16_t kRows[4 * 3] = {};
constexpr EmbeddingRows kTwoRows = {
    .data = kRows, .row_stride = 3, .num_rows = 2, .dim = 3, .dtype = DType::kBFloat16};

TEST(SlotMirrorTest, StepsWithEmbeddingsHaveEmbeddingInput) {
  SlotMirror mirror(LimitsWithEmbeddings());
  ScheduledBatch batch = Enter();
  const ScheduledEmbeddings ranges[] = {{.first_token = 0, .rows = kTwoRows.Part(0, 1)},
                                        {.first_token = 1, .rows = kTwoRows}};
  batch.embeddings = ranges;
  auto demand = mirror.Advance(batch);
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->shape.input, StepInput::kEmbeddings);
  const ScheduledRow decode[] = {{.slot = SlotId(0)}};
  demand = mirror.Advance({.rows = decode});
  ASSERT_TRUE(demand.ok()) << demand.status();
  EXPECT_EQ(demand->shape.input, StepInput::kTokens);
}

TEST(SlotMirrorTest, RejectsInvalidEmbeddingsWithoutChanges) {
  SlotMirror mirror(LimitsWithEmbeddings());
  const auto refused = [&](std::vector<ScheduledEmbeddings> ranges) {
    ScheduledBatch batch = Enter();
    batch.embeddings = ranges;
    return Refused(mirror, batch);
  };
  EXPECT_THAT(refused({{.row = 1, .rows = kTwoRows}}),
              HasSubstr("embeddings[0]: row must be in [0, 1), got 1"));
  EXPECT_THAT(refused({{.row = -1, .rows = kTwoRows}}), HasSubstr("got -1"));
  EXPECT_THAT(refused({{.first_token = 2, .rows = kTwoRows}}),
              HasSubstr("tokens must lie within the 3 tokens of row 0: got 2 to 4"));
  EXPECT_THAT(refused({{.first_token = -1, .rows = kTwoRows}}), HasSubstr("got -1 to 1"));
  EXPECT_THAT(
      refused({{.first_token = 0, .rows = kTwoRows}, {.first_token = 1, .rows = kTwoRows}}),
      HasSubstr(
          "embeddings[1]: must not overlap or precede the previous entry, which ends at token 2"));
  EXPECT_THAT(refused({{.first_token = 2, .rows = kTwoRows.Part(0, 1)},
                       {.first_token = 0, .rows = kTwoRows}}),
              HasSubstr("embeddings[1]: must not overlap or precede"));
  EmbeddingRows other = kTwoRows;
  other.dtype = DType::kFloat32;
  EXPECT_THAT(refused({{.rows = other}}), HasSubstr("dtype must be bfloat16: got float32"));
  EXPECT_EQ(mirror.seq_len(SlotId(0)), 0);
  ASSERT_TRUE(mirror.Advance(Enter()).ok());  // the rejected batches did not join the sequence

  // A row that continues from the device's token.
  const ScheduledRow decode[] = {{.slot = SlotId(0)}};
  const ScheduledEmbeddings range[] = {{.rows = kTwoRows.Part(0, 1)}};
  EXPECT_THAT(Refused(mirror, {.rows = decode, .embeddings = range}),
              HasSubstr("within the 0 tokens of row 0"));

  SlotMirror plain(kLimits);
  ScheduledBatch batch = Enter();
  batch.embeddings = range;
  EXPECT_THAT(Refused(plain, batch), HasSubstr("the model takes token ids only"));
}

TEST(SlotMirrorTest, RejectsInvalidPositions) {
  const int32_t positions[] = {0, 1, 2, 0, 1, 7};
  const auto refused = [&](const RunnerShape& limits, const RowPositions& given, int delta) {
    SlotMirror mirror(limits);
    const SlotJoin join[] = {
        {.slot = SlotId(0), .seq_len = 0, .prompt_len = 3, .position_delta = delta}};
    const ScheduledRow row[] = {{.slot = SlotId(0), .tokens = kPrompt, .positions = given}};
    const auto demand = mirror.Advance({.joins = join, .updates = kBlock0, .rows = row});
    return std::string(demand.status().message());
  };
  const RunnerShape limits = LimitsWithEmbeddings();
  const RowPositions all = {.data = positions, .dim_stride = 3, .num_dims = 2, .count = 3};
  EXPECT_EQ(refused(limits, all, -50), "");  // the row has no other tokens
  EXPECT_EQ(refused(limits, {}, 0), "");
  EXPECT_EQ(refused(limits, {}, 5), "");  // 5, 6, 7
  EXPECT_THAT(refused(limits, {}, 6), HasSubstr("expected [0, 8), got 6 to 8"));
  EXPECT_THAT(refused(limits, {}, -1), HasSubstr("got -1 to 1"));
  EXPECT_THAT(refused(limits, {.data = positions, .dim_stride = 3, .num_dims = 2, .count = 1}, -2),
              HasSubstr("got -1 to 0"));
  EXPECT_THAT(refused(limits, {.data = positions, .dim_stride = 3, .num_dims = 2, .count = 4}, 0),
              HasSubstr("expected 0 to 3, got 4"));
  EXPECT_THAT(refused(limits, {.data = positions, .dim_stride = 3, .num_dims = 2, .count = -1}, 0),
              HasSubstr("got -1"));
  EXPECT_THAT(refused(limits, {.dim_stride = 3, .num_dims = 2, .count = 2}, 0),
              HasSubstr("must not be null"));
  EXPECT_THAT(refused(limits, {.data = positions, .dim_stride = 3, .num_dims = 3, .count = 1}, 0),
              HasSubstr("must have the model's dimensions: expected 2, got 3"));
  RunnerShape fewer = limits;
  fewer.max_position = 7;
  EXPECT_THAT(refused(fewer, all, 0),
              HasSubstr("must be in [0, 7), got 7 for token 2 in dimension 1"));
  EXPECT_THAT(refused(kLimits, all, 0), HasSubstr("expected none, for it has one, got 2"));
  EXPECT_THAT(refused(kLimits, {}, 1), HasSubstr("position_delta of slot 0 must be 0"));
}

TEST_F(SlotMirrorGroupsTest, RejectsUnknownGroups) {
  const SlotJoin join[] = {JoinOf(SlotId(0), {}, 1)};
  for (int group : {-1, 4}) {
    const BlockTableUpdate update[] = {
        {.slot = SlotId(0), .column = 0, .block = BlockId(1), .group = group}};
    EXPECT_THAT(Refused(mirror_, {.joins = join, .updates = update}), HasSubstr("[0, 4), got"));
  }
}

TEST(SlotMirrorTest, RejectsSwapsOutsideTheCacheAndHostBlocks) {
  RunnerShape limits = kLimits;  // 5 blocks
  const auto one = [](const BlockCopy& copy) { return absl::MakeConstSpan(&copy, 1); };
  SlotMirror without(limits);
  const BlockCopy first = {1, 1};
  EXPECT_THAT(Refused(without, {.swap_outs = one(first)}),
              HasSubstr("swap_outs: the runner has no host memory"));
  EXPECT_THAT(Refused(without, {.swap_ins = one(first)}),
              HasSubstr("swap_ins: the runner has no host memory"));
  limits.num_swap_blocks = 9;
  SlotMirror mirror(limits);
  const BlockCopy to_the_last = {4, 8};
  const BlockCopy from_the_last = {8, 4};
  EXPECT_TRUE(mirror.Advance({.swap_outs = one(to_the_last)}).ok());
  EXPECT_TRUE(mirror.Advance({.swap_ins = one(from_the_last)}).ok());
  for (const BlockCopy& copy : {BlockCopy{0, 1}, BlockCopy{5, 1}, BlockCopy{-1, 1}}) {
    EXPECT_THAT(Refused(mirror, {.swap_outs = one(copy)}),
                HasSubstr("swap_outs: src blocks must be in [1, 5), got"));
    const BlockCopy back = {copy.dst, copy.src};
    EXPECT_THAT(Refused(mirror, {.swap_ins = one(back)}),
                HasSubstr("swap_ins: dst blocks must be in [1, 5), got"));
  }
  for (const BlockCopy& copy : {BlockCopy{1, 0}, BlockCopy{1, 9}, BlockCopy{1, -1}}) {
    EXPECT_THAT(Refused(mirror, {.swap_outs = one(copy)}),
                HasSubstr("swap_outs: dst blocks must be in [1, 9), got"));
    const BlockCopy back = {copy.dst, copy.src};
    EXPECT_THAT(Refused(mirror, {.swap_ins = one(back)}),
                HasSubstr("swap_ins: src blocks must be in [1, 9), got"));
  }
}

}  // namespace
}  // namespace reprise
