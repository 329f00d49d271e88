// Steps that need logits for tokens that are not the last of their row. Only steps with drafts have
// graphs. Tests the captured keys and the choice of a graph.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/graphs/graph_set.h"
#include "reprise/graphs/recorded_backend.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;
using Kind = GraphDecision::Kind;

class GraphSetDraftsTest : public ::testing::Test {
 protected:
  GraphSetDraftsTest() : backend_(MakeRecordedBackend()) {
    set_ = *GraphSet::Create({.mode = GraphSetOptions::Mode::kLazy,
                              .max_num_seqs = 16,
                              .sizes = {1, 4, 16},
                              .num_drafts = {2, 4},
                              .mixed_tokens = {64},
                              .max_seq_len = 1024},
                             backend_.get());
  }

  static StepShape Drafts(int num_seqs, int num_drafts) {
    return {.num_seqs = num_seqs,
            .num_tokens = num_seqs * (1 + num_drafts),
            .max_query_len = 1 + num_drafts,
            .max_seq_len = 100,
            .num_earlier_logits = num_seqs * num_drafts,
            .num_drafts = num_drafts};
  }

  std::unique_ptr<GraphBackend> backend_;
  std::unique_ptr<GraphSet> set_;
};

TEST_F(GraphSetDraftsTest, KeysHaveLogitsForAllTokens) {
  std::vector<GraphKey> with_drafts;
  for (const GraphKey& key : set_->keys()) {
    const bool is_mixed = key.max_query_len == key.padded_num_tokens && key.padded_num_seqs > 1;
    if (key.num_drafts > 0 && !is_mixed) with_drafts.push_back(key);
  }
  ASSERT_EQ(with_drafts.size(), 6u);
  const GraphKey largest = with_drafts.front();
  EXPECT_EQ(largest, (GraphKey{.padded_num_seqs = 16,
                               .padded_num_tokens = 80,
                               .max_query_len = 5,
                               .num_earlier_logits = 64,
                               .num_drafts = 4}));
  EXPECT_EQ(ToString(largest), "16 seqs x 5, tokens, 4 drafts");
}

TEST_F(GraphSetDraftsTest, UsesTheSmallestGraphThatHoldsTheStep) {
  const GraphDecision decision = set_->Decide(Drafts(3, 3));
  EXPECT_EQ(decision.kind, Kind::kReplay);
  EXPECT_EQ(ToString(decision.key), "4 seqs x 5, tokens, 4 drafts");
  EXPECT_EQ(ToString(set_->Decide(Drafts(4, 2)).key), "4 seqs x 3, tokens, 2 drafts");
  // Rows without drafts may be part of the step: it has fewer tokens, but the same key.
  StepShape mixed = Drafts(4, 2);
  mixed.num_tokens = 6;
  mixed.num_earlier_logits = 2;
  EXPECT_EQ(ToString(set_->Decide(mixed).key), "4 seqs x 3, tokens, 2 drafts");
}

// One step with rows with drafts, prompt chunks and plain rows.
TEST_F(GraphSetDraftsTest, StepsWithPromptsUseMixedGraphsWithDrafts) {
  const StepShape shape = {.num_seqs = 3,
                           .num_tokens = 5 + 1 + 30,
                           .max_query_len = 30,
                           .max_seq_len = 100,
                           .num_earlier_logits = 4,
                           .num_drafts = 4,
                           .has_given_tokens = true};
  const GraphDecision decision = set_->Decide(shape);
  EXPECT_EQ(decision.kind, Kind::kReplay);
  EXPECT_EQ(decision.key, (GraphKey{.padded_num_seqs = 16,
                                    .padded_num_tokens = 64,
                                    .max_query_len = 64,
                                    .num_earlier_logits = 63,
                                    .num_drafts = 4}));
  StepShape fewer = shape;
  fewer.num_drafts = 1;
  EXPECT_EQ(set_->Decide(fewer).key, decision.key);  // mixed graphs exist for the largest draft
                                                     // count only
  // Prompt logits count too.
  fewer.num_earlier_logits = 64;
  EXPECT_EQ(set_->Decide(fewer).reason, EagerReason::kDraftsAmongTokens);
  StepShape long_chunk = shape;
  long_chunk.num_tokens = 65;
  long_chunk.max_query_len = 59;
  EXPECT_EQ(set_->Decide(long_chunk).reason, EagerReason::kDraftsAmongTokens);
  // Without given tokens, a different graph with fewer tokens serves the step.
  StepShape drafts_alone = shape;
  drafts_alone.has_given_tokens = false;
  drafts_alone.num_tokens = 7;
  drafts_alone.max_query_len = 5;
  EXPECT_EQ(set_->Decide(drafts_alone).key.padded_num_tokens, 20);

  std::vector<GraphKey> mixed;
  for (const GraphKey& key : set_->keys()) {
    if (key.padded_num_tokens == 64 && key.max_query_len == 64) mixed.push_back(key);
  }
  ASSERT_EQ(mixed.size(), 2u);  // without drafts, and with 4 drafts
  EXPECT_EQ(mixed[0], decision.key);
  const auto make_step = [](const GraphKey&) { return [] { return absl::OkStatus(); }; };
  for (const GraphKey& key : mixed) {
    EXPECT_TRUE(set_->Replay(key, make_step, {}).ok()) << key;
    EXPECT_TRUE(set_->is_captured(key)) << key;
  }
  GraphKey other = decision.key;
  other.num_earlier_logits = 62;
  EXPECT_EQ(set_->Replay(other, make_step, {}).status().code(), absl::StatusCode::kInvalidArgument);
  other = decision.key;
  other.num_drafts = 2;
  other.num_earlier_logits = 32;
  EXPECT_EQ(set_->Replay(other, make_step, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

// A single row cannot have both drafts and given tokens.
TEST(GraphSetOfOneRowTest, HasNoMixedGraphWithDrafts) {
  const std::unique_ptr<GraphBackend> backend = MakeRecordedBackend();
  const auto set = GraphSet::Create({.mode = GraphSetOptions::Mode::kLazy,
                                     .max_num_seqs = 1,
                                     .num_drafts = {4},
                                     .mixed_tokens = {5, 64},
                                     .max_seq_len = 1024},
                                    backend.get());
  ASSERT_TRUE(set.ok()) << set.status();
  std::vector<std::string> keys;
  for (const GraphKey& key : (*set)->keys()) keys.push_back(ToString(key));
  EXPECT_THAT(keys, testing::ElementsAre("1 seqs x 5, tokens, 4 drafts", "1 seqs x 1, tokens",
                                         "1 seqs x 64, tokens", "1 seqs x 5, tokens"));
}

TEST_F(GraphSetDraftsTest, StepsWithoutDraftsUseGraphsWithoutDrafts) {
  StepShape prompt = Drafts(4, 2);
  prompt.num_drafts = 0;
  prompt.num_earlier_logits = 0;
  EXPECT_EQ(ToString(set_->Decide(prompt).key), "16 seqs x 64 (64 tokens), tokens");
  prompt.num_earlier_logits = 8;
  EXPECT_EQ(set_->Decide(prompt).reason, EagerReason::kEarlierLogits);
}

TEST_F(GraphSetDraftsTest, LogitsOfEarlierTokensMakeTheStepEager) {
  const StepShape shape = {
      .num_seqs = 2, .num_tokens = 7, .max_query_len = 6, .num_earlier_logits = 5};
  const GraphDecision decision = set_->Decide(shape);
  EXPECT_EQ(decision.kind, Kind::kEager);
  EXPECT_EQ(decision.reason, EagerReason::kEarlierLogits);
  EXPECT_EQ(decision.key.num_earlier_logits, 5);
  EXPECT_EQ(decision.key.padded_num_seqs, 2);
  // No graph without drafts computes such logits, for any value of the other fields.
  GraphKey key = set_->Decide({.num_seqs = 1, .num_tokens = 1}).key;
  key.num_earlier_logits = 1;
  const auto make_step = [](const GraphKey&) { return [] { return absl::OkStatus(); }; };
  EXPECT_EQ(set_->Replay(key, make_step, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(GraphSetDraftsTest, StepsThatNoGraphHoldsRunEagerlyWithAReason) {
  EXPECT_EQ(set_->Decide(Drafts(17, 2)).reason, EagerReason::kTooManySeqs);
  EXPECT_EQ(set_->Decide(Drafts(1, 5)).reason, EagerReason::kQueryTooLong);
  StepShape longer = Drafts(1, 2);
  longer.max_seq_len = 1025;
  EXPECT_EQ(set_->Decide(longer).reason, EagerReason::kSequenceTooLong);
  StepShape among_prompts = Drafts(2, 2);
  among_prompts.has_given_tokens = true;
  among_prompts.num_tokens = 65;
  among_prompts.max_query_len = 62;
  const GraphDecision decision = set_->Decide(among_prompts);
  EXPECT_EQ(decision.reason, EagerReason::kDraftsAmongTokens);
  EXPECT_EQ(decision.key.num_drafts, 2);
  EXPECT_EQ(decision.key.num_earlier_logits, 4);
}

TEST_F(GraphSetDraftsTest, ReplaysAndEstimatesGraphsWithDrafts) {
  std::vector<GraphKey> runs;
  const GraphSet::StepMaker make_step = [&](const GraphKey& key) {
    return [&runs, key] {
      runs.push_back(key);
      return absl::OkStatus();
    };
  };
  const GraphKey key = set_->Decide(Drafts(3, 3)).key;
  const auto replayed = set_->Replay(key, make_step, {});
  ASSERT_TRUE(replayed.ok()) << replayed.status();
  EXPECT_EQ(replayed->kind, Kind::kReplay);
  EXPECT_EQ(runs.back(), key);
  GraphKey other = key;
  other.num_drafts = 3;  // not a captured draft count
  EXPECT_EQ(set_->Replay(other, make_step, {}).status().code(), absl::StatusCode::kInvalidArgument);

  runs.clear();
  ASSERT_TRUE(set_->EstimateBytes(make_step).ok());
  // The largest key of each kind: decode, both draft counts, mixed, mixed with drafts.
  EXPECT_EQ(runs.size(), 5u);
}

TEST(GraphSetOptionsDraftsTest, RejectsDraftCountsOutOfRange) {
  const GraphSetOptions good = {.max_num_seqs = 4, .num_drafts = {1, 4}, .max_seq_len = 64};
  EXPECT_TRUE(CheckedOptions(good).ok());
  const auto message = [&](std::vector<int> num_drafts) {
    GraphSetOptions options = good;
    options.num_drafts = std::move(num_drafts);
    return std::string(CheckedOptions(options).status().message());
  };
  EXPECT_THAT(message({0}), HasSubstr("num_drafts must be positive and strictly ascending"));
  EXPECT_THAT(message({4, 4}), HasSubstr("num_drafts must be positive and strictly ascending"));
  EXPECT_THAT(message({64}), HasSubstr("num_drafts must not pass max_seq_len - 1"));
}

}  // namespace
}  // namespace reprise
