#include "reprise/runner/sampling/logits_state.h"

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;

constexpr int kSlots = 3;
constexpr int kVocab = 10;
constexpr int kMaxBiases = 2;
constexpr LogitsParams kPenalised = {.frequency_penalty = 0.5f};

// Slots whose memory holds data of earlier sequences, with a guard after each array.
struct Memory {
  std::vector<LogitsParams> params = std::vector<LogitsParams>(kSlots + 1);
  std::vector<LogitBias> biases = std::vector<LogitBias>(kSlots * kMaxBiases + 1, {7, 7});
  // vector's memory is aligned to 16 bytes
  std::vector<TokenCount> counts =
      std::vector<TokenCount>(kSlots * TokenCountStride(kVocab) + 1, 0xabcd);

  LogitsSlots slots() {
    return {.params = params.data(),
            .biases = biases.data(),
            .counts = counts.data(),
            .num_slots = kSlots,
            .max_biases = kMaxBiases,
            .vocab_size = kVocab};
  }
  std::vector<TokenCount> CountsOf(int slot) {
    TokenCount* row = slots().counts_of(slot);
    return std::vector<TokenCount>(row, row + kVocab);
  }

  void Join(const std::vector<LogitsJoin>& joins, const std::vector<LogitBias>& lists,
            const std::vector<int32_t>& tokens) {
    const JoinLogitsArgs args = {.joins = joins.data(),
                                 .biases = lists.data(),
                                 .tokens = tokens.data(),
                                 .num_joins = static_cast<int>(joins.size()),
                                 .num_biases = static_cast<int>(lists.size()),
                                 .num_tokens = static_cast<int>(tokens.size()),
                                 .slots = slots()};
    ASSERT_EQ(CheckJoinLogits(args), absl::OkStatus());
    JoinLogitsOnHost(args);
  }
};

TEST(JoinLogitsTest, CountsPromptAndOutputOfASequenceWithPenalties) {
  Memory memory;
  memory.Join({{.slot = 1, .params = kPenalised, .num_prompt_tokens = 4, .num_output_tokens = 3}},
              {}, {5, 0, 5, 9, 9, 9, 2});
  EXPECT_EQ(memory.params[1], kPenalised);
  EXPECT_THAT(memory.CountsOf(1),
              ElementsAre(kInPrompt, 0, 1, 0, 0, kInPrompt, 0, 0, 0, kInPrompt | 2));
  EXPECT_THAT(memory.CountsOf(0), testing::Each(0xabcd));
  EXPECT_THAT(memory.CountsOf(2), testing::Each(0xabcd));
  EXPECT_EQ(memory.counts.back(), 0xabcd);
}

TEST(JoinLogitsTest, ReadsNeitherTokensNorCountsOfASequenceWithoutPenalties) {
  Memory memory;
  const LogitsParams params = {.num_biases = 1, .num_log_probs = 3};
  memory.Join({{.slot = 2, .params = params, .first_bias = 1, .num_prompt_tokens = 1}},
              {{3, 1}, {4, 2}}, {5});
  EXPECT_EQ(memory.params[2], params);
  EXPECT_EQ(memory.slots().biases_of(2)[0], (LogitBias{4, 2}));
  EXPECT_EQ(memory.slots().biases_of(2)[1], (LogitBias{7, 7}));
  EXPECT_THAT(memory.counts, testing::Each(0xabcd));
}

TEST(JoinLogitsTest, SeveralJoinsShareTheStepsLists) {
  Memory memory;
  LogitsParams first = kPenalised;
  first.num_biases = 2;
  LogitsParams second = kPenalised;
  second.num_biases = 1;
  memory.Join({{.slot = 2, .params = first, .first_bias = 0, .num_prompt_tokens = 2},
               {.slot = 0,
                .params = second,
                .first_bias = 2,
                .first_token = 2,
                .num_prompt_tokens = 1,
                .num_output_tokens = 1}},
              {{1, 1}, {2, 2}, {3, 3}}, {8, 9, 8, 9});
  EXPECT_EQ(memory.slots().biases_of(2)[1], (LogitBias{2, 2}));
  EXPECT_EQ(memory.slots().biases_of(0)[0], (LogitBias{3, 3}));
  EXPECT_EQ(memory.CountsOf(2)[9], kInPrompt);
  EXPECT_EQ(memory.CountsOf(0)[8], kInPrompt);
  EXPECT_EQ(memory.CountsOf(0)[9], 1);
}

TEST(JoinLogitsTest, SkipsSlotsAndTokensOutOfRange) {
  Memory memory;
  constexpr int kFar = 1 << 30;
  memory.Join({{.slot = -1, .params = kPenalised, .num_prompt_tokens = 1},
               {.slot = kSlots, .params = kPenalised, .num_prompt_tokens = 1},
               {.slot = -kFar, .params = kPenalised},
               {.slot = 0, .params = kPenalised, .num_prompt_tokens = 3, .num_output_tokens = 2}},
              {}, {-1, kVocab, kFar, -kFar, 4});
  EXPECT_THAT(memory.CountsOf(0), ElementsAre(0, 0, 0, 0, 1, 0, 0, 0, 0, 0));
  EXPECT_EQ(memory.params[1], LogitsParams());
  EXPECT_EQ(memory.params[kSlots], LogitsParams());
}

TEST(JoinLogitsTest, SetsTheDefaultIfListsAreOutOfRange) {
  constexpr int kFar = 0x7fffffff;
  LogitsParams biased = kPenalised;
  biased.num_biases = 2;
  LogitsParams too_many = kPenalised;
  too_many.num_biases = 3;  // more than kMaxBiases
  LogitsParams negative = kPenalised;
  negative.num_biases = -1;
  for (const LogitsJoin& join : std::vector<LogitsJoin>{
           {.params = biased, .first_bias = 2},
           {.params = biased, .first_bias = -1},
           {.params = biased, .first_bias = kFar},
           {.params = too_many},
           {.params = negative},
           {.params = kPenalised, .num_prompt_tokens = 3},
           {.params = kPenalised, .num_prompt_tokens = -1, .num_output_tokens = 1},
           {.params = kPenalised, .num_prompt_tokens = 2, .num_output_tokens = 1},
           {.params = kPenalised, .num_prompt_tokens = kFar, .num_output_tokens = kFar},
           {.params = kPenalised, .first_token = 2, .num_prompt_tokens = 1},
           {.params = kPenalised, .first_token = -1, .num_prompt_tokens = 1}}) {
    Memory memory;
    memory.params[0] = kPenalised;
    memory.Join({join}, {{1, 1}, {2, 2}, {3, 3}}, {1, 2});
    EXPECT_EQ(memory.params[0], LogitsParams());
    EXPECT_THAT(memory.counts, testing::Each(0xabcd));
    EXPECT_THAT(memory.biases, testing::Each(LogitBias{7, 7}));
  }
}

TEST(CountTokensTest, CountsSampledTokensOfPenalisedRows) {
  Memory memory;
  memory.params = {kPenalised, {}, kPenalised};
  memory.counts.assign(memory.counts.size(), 0);
  memory.slots().counts_of(2)[6] = kInPrompt | 4;
  const std::vector<int32_t> sample_slot = {2, -1, 1, 0, 3, 1 << 30};
  const std::vector<int32_t> last_token = {3, 5, 6};
  const CountTokensArgs args = {.sample_slot = sample_slot.data(),
                                .last_token = last_token.data(),
                                .num_rows = 6,
                                .slots = memory.slots()};
  ASSERT_EQ(CheckCountTokens(args), absl::OkStatus());
  CountTokensOnHost(args);
  EXPECT_EQ(memory.CountsOf(0)[3], 1);
  EXPECT_EQ(memory.CountsOf(2)[6], kInPrompt | 5);
  EXPECT_THAT(memory.CountsOf(1), testing::Each(0));  // slot without penalties
}

TEST(CountTokensTest, SkipsTokensOutsideTheVocabulary) {
  Memory memory;
  memory.params = {kPenalised, kPenalised, kPenalised};
  const std::vector<int32_t> sample_slot = {0, 1, 2};
  const std::vector<int32_t> last_token = {-1, kVocab, 0x7fffffff};
  CountTokensOnHost({.sample_slot = sample_slot.data(),
                     .last_token = last_token.data(),
                     .num_rows = 3,
                     .slots = memory.slots()});
  EXPECT_THAT(memory.counts, testing::Each(0xabcd));
}

TEST(LogitsStateTest, BothFormsRejectBadArguments) {
  Memory memory;
  const JoinLogitsArgs joins = {.slots = memory.slots()};
  EXPECT_EQ(CheckJoinLogits(joins), absl::OkStatus());
  JoinLogitsArgs bad = joins;
  bad.num_joins = -1;
  EXPECT_EQ(CheckJoinLogits(bad),
            absl::InvalidArgumentError("num_joins: expected at least 0, got -1"));
  bad.num_joins = 1;
  EXPECT_EQ(CheckJoinLogits(bad), absl::InvalidArgumentError("joins: expected an array, got none"));
  bad = joins;
  bad.num_biases = 1;
  EXPECT_EQ(CheckJoinLogits(bad),
            absl::InvalidArgumentError("biases: expected an array, got none"));
  bad = joins;
  bad.num_tokens = 1;
  EXPECT_EQ(CheckJoinLogits(bad),
            absl::InvalidArgumentError("tokens: expected an array, got none"));
  bad = joins;
  bad.slots.vocab_size = 0;
  EXPECT_FALSE(CheckJoinLogits(bad).ok());

  CountTokensArgs count = {.num_rows = 1, .slots = memory.slots()};
  EXPECT_EQ(CheckCountTokens(count),
            absl::InvalidArgumentError("sample_slot: expected an array, got none"));
#ifdef REPRISE_WITH_CUDA
  EXPECT_EQ(LaunchJoinLogits(bad, nullptr), CheckJoinLogits(bad));
  EXPECT_EQ(LaunchCountTokens(count, nullptr), CheckCountTokens(count));
#endif
  count.num_rows = 0;
  EXPECT_EQ(CheckCountTokens(count), absl::OkStatus());
}

}  // namespace
}  // namespace reprise
