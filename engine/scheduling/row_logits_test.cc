// The logits requests of rows, and the log-probabilities that steps return.

#include "reprise/engine/scheduling/row_logits.h"

#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/testing/waiting_requests.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RowLogitsTest : public ::testing::Test {
 protected:
  // Adds a running sequence with `num_scheduled` computed tokens.
  SequenceState& Run(Request request, int num_scheduled = 0) {
    SequenceState& sequence = AddRequest(table_, std::move(request)).sequences[0];
    if (sequence.request().num_prompt_log_probs >= 0) {
      sequence.added->prompt_log_probs = std::make_shared<std::vector<TokenLogProbs>>();
    }
    table_.Admit(sequence);
    sequence.num_scheduled = num_scheduled;
    return sequence;
  }

  static ScheduledRow RowOf(const SequenceState& sequence, int num_tokens) {
    return {
        .slot = *sequence.slot,
        .tokens = absl::MakeConstSpan(sequence.tokens).subspan(sequence.num_scheduled, num_tokens)};
  }

  SequenceTable table_{4};
};

TEST_F(RowLogitsTest, AChunkThatIsNotScoredHasItsLength) {
  const SequenceState& plain = Run({.prompt = {1, 2, 3, 4, 5}});
  EXPECT_EQ(ScoredChunk(plain, 4, {.max = 2, .used = 2}), 4);
}

TEST_F(RowLogitsTest, AScoredChunkHasOneTokenMoreThanEarlierLogitsAreLeft) {
  const Request request = {.prompt = {1, 2, 3, 4, 5, 6}, .num_prompt_log_probs = 0};
  EXPECT_EQ(ScoredChunk(Run(request), 6, {.max = 10, .used = 0}), 6);
  EXPECT_EQ(ScoredChunk(Run(request), 6, {.max = 3, .used = 1}), 3);
  EXPECT_EQ(ScoredChunk(Run(request), 6, {.max = 3, .used = 3}), 1);
  // The last token of the prompt has no log-probability to compute.
  EXPECT_EQ(ScoredChunk(Run(request, /*num_scheduled=*/5), 1, {.max = 0, .used = 0}), 1);
}

TEST_F(RowLogitsTest, AScoredPromptEndsBeforeItsForcedTokens) {
  const SequenceState& sequence =
      Run({.prompt = {1, 2, 3}, .num_prompt_log_probs = 0, .forced_tokens = {7, 8, 9}});
  EXPECT_EQ(ScoredChunk(sequence, 5, {.max = 10, .used = 0}), 3);
}

TEST_F(RowLogitsTest, ForcedTokensAreFedInChunksIfEarlierLogitsAreComputed) {
  const Request request = {.prompt = {1, 2, 3}, .forced_tokens = {7, 8, 9}};
  SequenceState& sequence = Run(request);
  EXPECT_FALSE(FeedsForcedInChunks(sequence, 0));
  EXPECT_TRUE(FeedsForcedInChunks(sequence, 1));
  EXPECT_FALSE(FeedsForcedInChunks(Run({.prompt = {1}}), 1));
  EXPECT_EQ(ScoredChunk(sequence, 5, {.max = 0, .used = 0}), 5);
  EXPECT_EQ(ScoredChunk(sequence, 5, {.max = 8, .used = 0}), 3) << "the prompt, up to its last";
  sequence.num_scheduled = 2;
  EXPECT_EQ(ScoredChunk(sequence, 3, {.max = 8, .used = 7}), 2) << "token 2 and one more";
}

TEST_F(RowLogitsTest, OnlyTheLastChunkOfAPromptGeneratesAToken) {
  SequenceState& sequence = Run({.prompt = {1, 2, 3}});
  OpenRow open{.sequence = &sequence};
  ScheduledRow row = RowOf(sequence, 2);
  SetOutput(sequence, row, open);
  EXPECT_EQ(row.output, RowOutput::kNone);
  EXPECT_EQ(open.num_new_tokens, 0);
  EXPECT_EQ(row.next_token, -1);
  sequence.num_scheduled = 2;
  row = RowOf(sequence, 1);
  SetOutput(sequence, row, open);
  EXPECT_EQ(row.output, RowOutput::kToken);
  EXPECT_EQ(open.output, RowOutput::kToken);
  EXPECT_EQ(open.num_new_tokens, 1);
  EXPECT_EQ(row.logits, RowLogits::kLast);
}

TEST_F(RowLogitsTest, ScoredChunkRequestsAllLogitsAndSetsTheNextToken) {
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4}, .num_prompt_log_probs = 1});
  OpenRow open{.sequence = &sequence};
  ScheduledRow row = RowOf(sequence, 2);
  SetOutput(sequence, row, open);
  EXPECT_TRUE(open.scores_prompt);
  EXPECT_EQ(row.logits, RowLogits::kAll);
  EXPECT_EQ(row.next_token, 3);
  // The last chunk generates a token.
  sequence.num_scheduled = 2;
  row = RowOf(sequence, 2);
  SetOutput(sequence, row, open);
  EXPECT_EQ(row.output, RowOutput::kToken);
  EXPECT_EQ(row.next_token, -1);
}

TEST_F(RowLogitsTest, APromptThatIsOnlyScoredGeneratesNoToken) {
  SequenceState& sequence =
      Run({.prompt = {1, 2, 3}, .max_new_tokens = 0, .num_prompt_log_probs = 0});
  OpenRow open{.sequence = &sequence};
  ScheduledRow row = RowOf(sequence, 3);
  SetOutput(sequence, row, open);
  EXPECT_EQ(row.output, RowOutput::kNone);
  EXPECT_EQ(open.num_new_tokens, 0);
  EXPECT_EQ(row.next_token, -1) << "no token follows the prompt";
}

TEST_F(RowLogitsTest, ScoredForcedTokensAreNotSampled) {
  SequenceState& scored =
      Run({.prompt = {1, 2}, .num_log_probs = 0, .forced_tokens = {7, 8, 9}}, 1);
  OpenRow open{.sequence = &scored};
  ScheduledRow row = RowOf(scored, 2);  // tokens 2 and 7, followed by 8
  SetOutput(scored, row, open);
  EXPECT_EQ(row.output, RowOutput::kNone);
  EXPECT_EQ(open.num_new_tokens, 2);
  EXPECT_EQ(row.logits, RowLogits::kAll);
  EXPECT_EQ(row.next_token, 8);

  SequenceState& plain = Run({.prompt = {1, 2}, .forced_tokens = {7, 8, 9}}, 1);
  row = RowOf(plain, 2);
  OpenRow plain_open{.sequence = &plain};
  SetOutput(plain, row, plain_open);
  EXPECT_EQ(row.output, RowOutput::kToken) << "shows whether the logits are NaN";
  EXPECT_EQ(row.next_token, -1);
}

TEST_F(RowLogitsTest, ARequestForLogitsViewsTheSequencesTokens) {
  EXPECT_EQ(LogitsRequestOf(Run({.prompt = {1, 2}})), std::nullopt);
  SequenceState& sequence = Run({.prompt = {1, 2}, .sampling = {.presence_penalty = 1}});
  sequence.tokens.push_back(30);
  ++sequence.num_known;
  const auto request = LogitsRequestOf(sequence);
  ASSERT_TRUE(request.has_value());
  EXPECT_EQ(request->slot, *sequence.slot);
  EXPECT_THAT(request->prompt, ElementsAre(1, 2));
  EXPECT_THAT(request->output, ElementsAre(30));
}

class OneTokenMasker : public TokenMasker {
 public:
  explicit OneTokenMasker(bool throws) : throws_(throws) {}
  void Fill(absl::Span<int32_t> mask) override {
    if (throws_) throw std::runtime_error("burnt");
    mask[0] = 4;
  }
  bool Accept(int32_t) override { return true; }

 private:
  bool throws_;
};

TEST_F(RowLogitsTest, ARowGetsTheMaskOfItsMasker) {
  SequenceState& sequence = Run({.prompt = {1, 2}});
  OpenRow open{.sequence = &sequence, .output = RowOutput::kToken};
  EXPECT_FALSE(NeedsMask(sequence, open));
  sequence.token_masker = std::make_unique<OneTokenMasker>(/*throws=*/false);
  EXPECT_TRUE(NeedsMask(sequence, open));
  std::vector<int32_t> mask = {0, 0};
  ScheduledRow row = {.slot = *sequence.slot};
  SetMask(sequence, absl::MakeSpan(mask), row, open);
  EXPECT_THAT(row.allowed_tokens, ElementsAre(4, 0));
  EXPECT_EQ(row.output, RowOutput::kToken);
  open.output = RowOutput::kNone;
  EXPECT_FALSE(NeedsMask(sequence, open)) << "a chunk of the prompt";
}

TEST_F(RowLogitsTest, ARowWhoseMaskerThrowsGeneratesNoToken) {
  SequenceState& sequence = Run({.prompt = {1, 2}});
  sequence.tokens.push_back(30);
  sequence.num_known = 3;
  sequence.num_scheduled = 2;
  sequence.token_masker = std::make_unique<OneTokenMasker>(/*throws=*/true);
  OpenRow open{.sequence = &sequence, .output = RowOutput::kToken};
  std::vector<int32_t> mask = {0, 0};
  ScheduledRow row = {.slot = *sequence.slot};
  SetMask(sequence, absl::MakeSpan(mask), row, open);
  EXPECT_THAT(sequence.failure.message(), HasSubstr("burnt"));
  EXPECT_EQ(row.output, RowOutput::kNone);
  EXPECT_EQ(open.output, RowOutput::kNone);
  EXPECT_TRUE(row.allowed_tokens.empty());
  EXPECT_THAT(row.tokens, ElementsAre(30)) << "the host feeds the token that it knows";
}

// ---- After the step.

TEST_F(RowLogitsTest, TheLastTokenOfARowHasNoEarlierLogits) {
  const OpenRow row = {.first_token = 5, .num_tokens = 3, .first_earlier = 4, .has_earlier = true};
  EXPECT_EQ(EarlierOf(row, 5), 4);
  EXPECT_EQ(EarlierOf(row, 6), 5);
  EXPECT_EQ(EarlierOf(row, 7), -1);
  EXPECT_EQ(EarlierOf({.first_token = 5, .num_tokens = 3}, 5), -1);
}

// A step of one row of the tokens 0 to 2 of a prompt, with up to two candidates each.
struct ScoredStep {
  std::vector<float> last = {-3}, earlier = {-1, -2};
  std::vector<int32_t> last_ranks = {3}, earlier_ranks = {1, 2};
  std::vector<int32_t> last_top = {30, 31}, earlier_top = {10, 11, 20, -1};
  std::vector<float> last_top_log_probs = {-.5, -.6}, earlier_top_log_probs = {-.1, -.2, -.3, 0};

  StepResult result() const {
    return {.tokens = {},
            .log_probs = {last, last_ranks, last_top, last_top_log_probs, 2},
            .earlier_log_probs = {earlier, earlier_ranks, earlier_top, earlier_top_log_probs, 2}};
  }
};

TEST_F(RowLogitsTest, LogProbsComeFromTheRowOrFromEarlierLogits) {
  const OpenRow row = {.num_tokens = 3, .has_earlier = true};
  const ScoredStep step;
  EXPECT_EQ(
      LogProbsOf({row, 0, 0}, step.result(), 5, 2),
      (TokenLogProbs{.token = 5, .log_prob = -1, .rank = 1, .top = {{10, -.1f}, {11, -.2f}}}));
  EXPECT_EQ(LogProbsOf({row, 0, 1}, step.result(), 6, 2),
            (TokenLogProbs{.token = 6, .log_prob = -2, .rank = 2, .top = {{20, -.3f}}}))
      << "-1 ends the candidates";
  EXPECT_EQ(LogProbsOf({row, 0, 2}, step.result(), 7, 1),
            (TokenLogProbs{.token = 7, .log_prob = -3, .rank = 3, .top = {{30, -.5f}}}));
  EXPECT_DEATH(LogProbsOf({row, 1, 2}, step.result(), 7, 0), "log-probabilities");
}

TEST_F(RowLogitsTest, CollectsEachPromptTokenOnce) {
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4}, .num_prompt_log_probs = 1});
  OpenRow row = {
      .sequence = &sequence, .num_tokens = 3, .scores_prompt = true, .has_earlier = true};
  const ScoredStep step;
  const std::vector<TokenLogProbs>& collected = *sequence.added->prompt_log_probs;
  EXPECT_TRUE(CollectPromptLogProbs(row, 0, step.result()));
  EXPECT_TRUE(CollectPromptLogProbs(row, 0, step.result())) << "after a preemption";
  EXPECT_THAT(
      collected,
      ElementsAre(TokenLogProbs{.token = 2, .log_prob = -1, .rank = 1, .top = {{10, -.1f}}},
                  TokenLogProbs{.token = 3, .log_prob = -2, .rank = 2, .top = {{20, -.3f}}},
                  TokenLogProbs{.token = 4, .log_prob = -3, .rank = 3, .top = {{30, -.5f}}}));
  EXPECT_FALSE(sequence.needs_prompt_log_probs());
  row.scores_prompt = false;
  EXPECT_TRUE(CollectPromptLogProbs(row, 0, StepResult()));
}

TEST_F(RowLogitsTest, RejectsANanLogProbability) {
  SequenceState& sequence = Run({.prompt = {1, 2, 3, 4}, .num_prompt_log_probs = 1});
  const OpenRow row = {
      .sequence = &sequence, .num_tokens = 3, .scores_prompt = true, .has_earlier = true};
  ScoredStep step;
  step.earlier[1] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(CollectPromptLogProbs(row, 0, step.result()));
  EXPECT_EQ(sequence.added->prompt_log_probs->size(), 1u);
}

}  // namespace
}  // namespace reprise
