#include "reprise/graphs/graph_key.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash_testing.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

constexpr GraphKey kDecode{.padded_num_seqs = 16, .padded_num_tokens = 16};

TEST(GraphKeyTest, PrintsRowsQueryLengthAndInput) {
  EXPECT_EQ(ToString(kDecode), "16 seqs x 1, tokens");
  EXPECT_EQ(ToString(GraphKey{.padded_num_seqs = 8,
                              .padded_num_tokens = 40,
                              .max_query_len = 5,
                              .input = StepInput::kEmbeddings,
                              .cascade = true}),
            "8 seqs x 5, embeddings, cascade");
}

TEST(GraphKeyTest, PrintsTheTokensIfTheyDifferFromRowsTimesQueryLength) {
  const GraphKey live{.padded_num_seqs = 3, .padded_num_tokens = 20, .max_query_len = 18};
  EXPECT_EQ(ToString(live), "3 seqs x 18 (20 tokens), tokens");
  GraphKey all_logits = live;
  all_logits.num_earlier_logits = 17;
  EXPECT_EQ(ToString(all_logits), "3 seqs x 18 (20 tokens), tokens, 17 earlier logits");
}

TEST(GraphKeyTest, LargestCountsDoNotOverflow) {
  const GraphKey huge{
      .padded_num_seqs = 2147483647, .padded_num_tokens = 1, .max_query_len = 2147483647};
  EXPECT_EQ(ToString(huge), "2147483647 seqs x 2147483647 (1 tokens), tokens");
}

TEST(GraphKeyTest, KeysWithAnyDifferentFieldAreUnequal) {
  std::vector<GraphKey> keys(8, kDecode);
  keys[1].padded_num_seqs = 17;
  keys[2].padded_num_tokens = 17;
  keys[3].max_query_len = 2;
  keys[4].input = StepInput::kEmbeddings;
  keys[5].cascade = true;
  keys[6].num_earlier_logits = 1;
  keys[7].num_drafts = 1;
  EXPECT_EQ(absl::flat_hash_set<GraphKey>(keys.begin(), keys.end()).size(), keys.size());
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(keys));
}

TEST(GraphKeyTest, EveryReasonHasItsOwnName) {
  absl::flat_hash_set<std::string> names;
  for (int i = 0; i < kNumEagerReasons; ++i) {
    std::ostringstream out;
    out << static_cast<EagerReason>(i);
    EXPECT_FALSE(out.str().empty());
    EXPECT_TRUE(names.insert(out.str()).second) << out.str();
  }
}

TEST(GraphKeyDeathTest, UnknownEagerReasonDies) {
  EXPECT_DEATH(EagerReasonName(static_cast<EagerReason>(kNumEagerReasons)), "unknown EagerReason");
}

TEST(GraphKeyTest, PrintsDecisions) {
  std::ostringstream out;
  out << GraphDecision{
      .kind = GraphDecision::Kind::kReplay, .reason = EagerReason::kNone, .key = kDecode};
  EXPECT_EQ(out.str(), "replay 16 seqs x 1, tokens");
  EXPECT_EQ(ToString(GraphDecision{.kind = GraphDecision::Kind::kEager,
                                   .reason = EagerReason::kTooManySeqs,
                                   .key = kDecode}),
            "eager 16 seqs x 1, tokens: too many sequences");
}

}  // namespace
}  // namespace reprise
