#include "reprise/runner/sampling/logits_params.h"

#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(TokenCountTest, CountsTheOutputAndRemembersThePrompt) {
  TokenCount count = 0;
  EXPECT_EQ(OutputCount(count), 0);
  count = WithOutputToken(WithOutputToken(count));
  EXPECT_EQ(count, 2);
  count = WithPromptToken(WithPromptToken(count));
  EXPECT_EQ(count, 0x8002);
  EXPECT_EQ(OutputCount(count), 2);
}

TEST(TokenCountTest, StopsAtItsLargestValue) {
  for (TokenCount count : {TokenCount{0x7ffe}, TokenCount{0xfffe}}) {
    count = WithOutputToken(count);
    EXPECT_EQ(OutputCount(count), 32767);
    EXPECT_EQ(WithOutputToken(count), count);
  }
}

TEST(TokenCountTest, RowsBeginAtMultiplesOf16Bytes) {
  EXPECT_EQ(TokenCountStride(1), 8);
  EXPECT_EQ(TokenCountStride(128256), 128256);
  EXPECT_EQ(TokenCountStride(50257), 50264);
}

TEST(LogitsParamsTest, OnlyNonDefaultParametersPenalise) {
  EXPECT_FALSE(HasPenalties({}));
  EXPECT_FALSE(HasPenalties({.num_biases = 3, .num_log_probs = 5}));
  EXPECT_TRUE(HasPenalties({.repetition_penalty = 1.1f}));
  EXPECT_TRUE(HasPenalties({.presence_penalty = -0.5f}));
  EXPECT_TRUE(HasPenalties({.frequency_penalty = 0.1f}));
  LogitsSlots slots;
  EXPECT_FALSE(slots.counts_tokens({.frequency_penalty = 0.1f}));  // no memory for counts
}

TEST(LogitsParamsTest, ListLengthIsLimitedToItsMemory) {
  LogitsSlots slots;
  slots.max_biases = 4;
  EXPECT_EQ(slots.num_biases({.num_biases = 3}), 3);
  EXPECT_EQ(slots.num_biases({.num_biases = 5}), 4);
  EXPECT_EQ(slots.num_biases({.num_biases = -1}), 0);
}

TEST(CheckLogitsParamsTest, NamesTheParameterThatIsWrong) {
  EXPECT_EQ(CheckLogitsParams({}, {}, 10), absl::OkStatus());
  EXPECT_EQ(CheckLogitsParams({.repetition_penalty = 0.5f,
                               .presence_penalty = -2,
                               .frequency_penalty = 2,
                               .num_biases = 2,
                               .num_log_probs = 20},
                              std::vector<LogitBias>{{9, -kInfinity}, {0, 100}}, 10),
            absl::OkStatus());
  const struct {
    LogitsParams params;
    std::vector<LogitBias> biases;
    const char* message;
  } cases[] = {
      {{.repetition_penalty = 0}, {}, "repetition_penalty must be above 0"},
      {{.repetition_penalty = -1}, {}, "repetition_penalty must be above 0"},
      {{.repetition_penalty = kNan}, {}, "repetition_penalty must be finite"},
      {{.repetition_penalty = kInfinity}, {}, "repetition_penalty must be finite"},
      {{.presence_penalty = kNan}, {}, "presence_penalty must be finite"},
      {{.frequency_penalty = -kInfinity}, {}, "frequency_penalty must be finite"},
      {{.num_log_probs = -2}, {}, "num_log_probs: expected -1 to 20, got -2"},
      {{.num_log_probs = 21}, {}, "num_log_probs: expected -1 to 20, got 21"},
      {{.num_known_log_probs = -2}, {}, "num_known_log_probs: expected -1 to 20, got -2"},
      {{.num_known_log_probs = 21}, {}, "num_known_log_probs: expected -1 to 20, got 21"},
      {{.num_biases = 1}, {}, "num_biases must equal the number of biases: expected 0, got 1"},
      {{}, {{0, 1}}, "num_biases must equal the number of biases: expected 1, got 0"},
      {{.num_biases = 1}, {{10, 1}}, "biases must name tokens in [0, 10): got 10"},
      {{.num_biases = 1}, {{-1, 1}}, "biases must name tokens in [0, 10): got -1"},
      {{.num_biases = 1}, {{1, kNan}}, "biases must be finite or -inf: got nan for token 1"},
      {{.num_biases = 1}, {{1, kInfinity}}, "biases must be finite or -inf"},
      {{.num_biases = 3}, {{4, 1}, {2, 1}, {4, 0}}, "distinct tokens: got 4 twice"},
  };
  for (const auto& [params, biases, message] : cases) {
    const absl::Status status = CheckLogitsParams(params, biases, 10);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(CheckLogitsSlotsTest, NamesTheFieldThatIsWrong) {
  LogitsParams params;
  LogitBias bias;
  alignas(16) TokenCount counts[16];
  const LogitsSlots good = {.params = &params,
                            .biases = &bias,
                            .counts = counts,
                            .num_slots = 1,
                            .max_biases = 1,
                            .vocab_size = 8};
  EXPECT_EQ(CheckLogitsSlots(good), absl::OkStatus());
  const auto refusal = [&](auto spoil) {
    LogitsSlots slots = good;
    spoil(slots);
    return std::string(CheckLogitsSlots(slots).message());
  };
  EXPECT_EQ(refusal([](LogitsSlots& s) { s.num_slots = -1; }),
            "slots.num_slots: expected at least 0, got -1");
  EXPECT_EQ(refusal([](LogitsSlots& s) { s.max_biases = -1; }),
            "slots.max_biases: expected at least 0, got -1");
  EXPECT_EQ(refusal([](LogitsSlots& s) { s.vocab_size = 0; }),
            "slots.vocab_size: expected at least 1, got 0");
  EXPECT_EQ(refusal([](LogitsSlots& s) { s.params = nullptr; }),
            "slots.params: expected an array, got none");
  EXPECT_EQ(refusal([](LogitsSlots& s) { s.biases = nullptr; }),
            "slots.biases: expected an array, got none");
  EXPECT_THAT(refusal([](LogitsSlots& s) { s.counts += 1; }),
              HasSubstr("slots.counts: expected a multiple of 16"));
  EXPECT_EQ(refusal([](LogitsSlots& s) { s.counts = nullptr; }), "");
}

}  // namespace
}  // namespace reprise
