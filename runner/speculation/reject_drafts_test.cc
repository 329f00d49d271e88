#include "reprise/runner/speculation/reject_drafts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/element_access.h"
#include "reprise/base/testing/builder_memory.h"
#include "reprise/runner/testing/rejection_cases.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// One position: logits of four tokens, and a draft.
class OnePlace : public ::testing::Test {
 protected:
  OnePlace() {
    args_.logits = logits_;
    args_.logits_stride = 4;
    args_.draft_logits = draft_logits_;
    args_.draft_logits_stride = 4;
    args_.num_draft_rows = 1;
    args_.vocab_size = 4;
    args_.slots.params = &params_;
    args_.slots.sample_index = &sample_index_;
    args_.slots.num_slots = 1;
    args_.arrays.token_ids = token_ids_;
    args_.arrays.logits_indices = &logits_index_;
    args_.arrays.sample_slot = &sample_slot_;
    args_.arrays.sample_offset = &sample_offset_;
    args_.arrays.draft_logits = draft_rows_;
    args_.arrays.max_rows = 1;
    args_.arrays.max_tokens = 2;
    args_.num_rows = 1;
    args_.chosen = &chosen_;
    params_.temperature = 1.0f;
  }

  // Returns the token of the position, for which Sample() returned token 3.
  int32_t Choose() {
    chosen_ = 3;
    EXPECT_EQ(CheckRejectDrafts(args_), absl::OkStatus());
    RejectDraftsOnHost(args_);
    return chosen_;
  }

  // Returns how often each token is chosen in `num_draws` draws.
  std::vector<int> Count(int num_draws) {
    std::vector<int> counts(4);
    for (int i = 0; i < num_draws; ++i) {
      params_.seed = i;
      ++counts[Choose()];
    }
    return counts;
  }

  float logits_[4] = {0, 0, 0, 0};
  float draft_logits_[4] = {0, 0, 0, 0};
  SamplingParams params_;
  int64_t sample_index_ = 5;
  int32_t token_ids_[2] = {0, 1};
  int32_t logits_index_ = 0;
  int32_t sample_slot_ = 0;
  int32_t sample_offset_ = 2;
  int32_t draft_rows_[2] = {-1, 0};
  int32_t chosen_ = -9;
  RejectDraftsArgs args_;
};

TEST_F(OnePlace, AlwaysAcceptsADraftIfPEqualsQ) {
  EXPECT_THAT(Count(500), testing::ElementsAre(0, 500, 0, 0));
}

TEST_F(OnePlace, NeverAcceptsADraftThatTheModelExcludes) {
  logits_[1] = -INFINITY;
  EXPECT_EQ(Count(500)[1], 0);
  params_.top_k = 2;
  logits_[1] = 1;
  logits_[2] = 2;
  logits_[3] = 3;
  // The drafter's distribution is uniform over all tokens.
  const std::vector<int> counts = Count(500);
  EXPECT_EQ(counts[0] + counts[1], 0);
}

// p is 1/4 for each token. First, q is 1/2 for the draft: half of the drafts are accepted. Then q
// is 3/8 for the draft and for token 0: two thirds of the drafts are accepted, and a rejection
// never chooses token 0, because its max(0, p - q) is 0.
TEST_F(OnePlace, SamplesTheReplacementFromTheResidual) {
  draft_logits_[1] = std::log(3.0f);  // q = 1/6, 1/2, 1/6, 1/6
  const std::vector<int> counts = Count(20000);
  EXPECT_NEAR(counts[1], 10000, 300);
  EXPECT_NEAR(counts[0], 3333, 250);
  EXPECT_NEAR(counts[2], 3333, 250);
  draft_logits_[0] = std::log(3.0f);  // q = 3/8, 3/8, 1/8, 1/8
  const std::vector<int> others = Count(20000);
  EXPECT_NEAR(others[1], 13333, 300);
  EXPECT_EQ(others[0], 0);
}

TEST_F(OnePlace, AcceptsADraftWithoutLogitsWithProbabilityP) {
  for (const int32_t row : {-1, 1, -7}) {  // not sampled, or out of range
    draft_rows_[1] = row;
    EXPECT_NEAR(Count(20000)[1], 5000, 250);
  }
  args_.draft_logits = nullptr;
  args_.arrays.draft_logits = nullptr;
  EXPECT_NEAR(Count(20000)[1], 5000, 250);
}

TEST_F(OnePlace, TheSameSeedAndIndexGiveTheSameToken) {
  draft_logits_[1] = 2;
  const std::vector<int> counts = Count(300);
  EXPECT_EQ(Count(300), counts);
  sample_index_ = 6;
  sample_offset_ = 1;  // the same token index of the sequence
  EXPECT_EQ(Count(300), counts);
  sample_offset_ = 2;
  std::vector<int32_t> tokens;
  std::vector<int32_t> others;
  for (int i = 0; i < 100; ++i) {
    params_.seed = i;
    sample_index_ = 5;
    tokens.push_back(Choose());
    sample_index_ = 6;
    others.push_back(Choose());
  }
  EXPECT_NE(tokens, others);
}

TEST_F(OnePlace, KeepsChosenTokensWithoutADraft) {
  logits_[3] = 1;
  const auto stays = [&] { return Count(50)[3] == 50; };
  draft_logits_[1] = 5;
  EXPECT_FALSE(stays());
  params_.temperature = 0;  // greedy
  EXPECT_TRUE(stays());
  params_.temperature = 1;
  for (const int32_t slot : {-1, 1}) {
    sample_slot_ = slot;
    EXPECT_TRUE(stays());
  }
  sample_slot_ = 0;
  for (const int32_t draft : {-1, 4}) {
    token_ids_[1] = draft;
    EXPECT_TRUE(stays());
  }
  token_ids_[1] = 1;
  for (const int32_t index : {-1, 1, 100}) {  // no token follows
    logits_index_ = index;
    EXPECT_TRUE(stays());
  }
  logits_index_ = 0;
  EXPECT_FALSE(stays());
  chosen_ = kNanRow;
  RejectDraftsOnHost(args_);
  EXPECT_EQ(chosen_, kNanRow);
}

TEST_F(OnePlace, RejectsInvalidArguments) {
  const auto message = [](const RejectDraftsArgs& args) {
    return std::string(CheckRejectDrafts(args).message());
  };
  RejectDraftsArgs args = args_;
  args.dtype = DType::kFp8E4M3;
  EXPECT_THAT(message(args), HasSubstr("dtype must be float32, float16 or bfloat16"));
  args = args_;
  args.first_row = 1;
  EXPECT_THAT(message(args), HasSubstr("first_row + num_rows: expected at most 1, got 2"));
  args = args_;
  args.num_rows = -1;
  EXPECT_THAT(message(args), HasSubstr("num_rows"));
  args = args_;
  args.logits_stride = 3;
  EXPECT_THAT(message(args), HasSubstr("logits_stride: expected at least 4, got 3"));
  args = args_;
  args.vocab_size = 0;
  EXPECT_THAT(message(args), HasSubstr("vocab_size"));
  args = args_;
  args.chosen = nullptr;
  EXPECT_THAT(message(args), HasSubstr("chosen"));
  args = args_;
  args.slots.params = nullptr;
  EXPECT_THAT(message(args), HasSubstr("slots.params"));
  args = args_;
  args.arrays.draft_logits = nullptr;
  EXPECT_THAT(message(args), HasSubstr("arrays.draft_logits"));
  args = args_;
  args.draft_logits_stride = 3;
  EXPECT_THAT(message(args), HasSubstr("draft_logits_stride"));
}

// Bfloat16 logits and the same logits in float32 give the same tokens.
TEST(RejectDraftsTest, EachTypeOfLogitsGivesTheSameTokens) {
  std::mt19937 random(4);
  for (int i = 0; i < 60; ++i) {
    RejectionShape shape = DrawRejectionShape(random);
    shape.vocab_size = std::min(shape.vocab_size, 500);
    shape.dtype = DType::kBFloat16;
    BuilderMemory<RejectDraftsArgs> narrow(
        [&](ArrayCarver& carver) { return CarveRejectDrafts(shape, carver); });
    DrawRejectDrafts(random, shape, narrow.args());
    RejectDraftsArgs args = narrow.args();
    const auto widened = [&](const void* logits, int64_t rows) {
      std::vector<float> wide;
      for (int64_t j = 0; j < rows * args.logits_stride; ++j) {
        wide.push_back(LoadElement<float>(logits, shape.dtype, j));
      }
      return wide;
    };
    const std::vector<float> logits = widened(args.logits, shape.max_tokens());
    const std::vector<float> drafts = args.draft_logits == nullptr
                                          ? std::vector<float>()
                                          : widened(args.draft_logits, args.num_draft_rows);
    std::vector<int32_t> chosen(args.chosen, args.chosen + shape.max_tokens());
    args.dtype = DType::kFloat32;
    args.logits = logits.data();
    if (args.draft_logits != nullptr) args.draft_logits = drafts.data();
    args.chosen = chosen.data();
    RejectDraftsOnHost(args);
    RejectDraftsOnHost(narrow.args());
    EXPECT_EQ(std::vector<int32_t>(narrow.args().chosen, narrow.args().chosen + shape.max_tokens()),
              chosen)
        << shape;
  }
}

void ExpectTheModelsTokens(const SamplingParams& sampling, bool drafts_drawn, int num_texts) {
  const MarkovModels models = SomeMarkovModels(sampling, drafts_drawn);
  const MarkovTexts texts = GenerateTexts(models, num_texts, 4, 1000, RejectDraftsOnHost);
  const double deviation = ChiSquareDeviation(models, texts);
  EXPECT_GT(deviation, -3.5);
  EXPECT_LT(deviation, 4);
}

TEST(RejectDraftsTest, AMillionTokensHaveTheModelsDistribution) {
  ExpectTheModelsTokens({.temperature = 1.0f}, /*drafts_drawn=*/true, 250000);
}

TEST(RejectDraftsTest, TokensHaveTheModelsDistributionWithFilters) {
  ExpectTheModelsTokens({.temperature = 0.8f, .top_k = 5, .top_p = 0.93f, .min_p = 0.03f},
                        /*drafts_drawn=*/true, 80000);
}

TEST(RejectDraftsTest, TokensHaveTheModelsDistributionWithCertainDrafts) {
  ExpectTheModelsTokens({.temperature = 0.9f, .top_p = 0.95f}, /*drafts_drawn=*/false, 80000);
}

// Shows that the tests above can fail: neither the drafter's tokens nor tokens that are sampled
// from p after a rejection have the model's distribution.
TEST(RejectDraftsTest, ChiSquareDetectsAWrongDistribution) {
  const MarkovModels models = SomeMarkovModels({.temperature = 1.0f}, /*drafts_drawn=*/true);
  const MarkovTexts accepted = GenerateTexts(models, 20000, 4, 1, [](const RejectDraftsArgs& args) {
    for (int row = args.first_row; row < args.first_row + args.num_rows; ++row) {
      args.chosen[row] = args.arrays.token_ids[args.arrays.logits_indices[row] + 1];
    }
  });
  EXPECT_GT(ChiSquareDeviation(models, accepted), 50);
  const MarkovTexts drawn_again =
      GenerateTexts(models, 20000, 4, 1, [](const RejectDraftsArgs& args) {
        const std::vector<int32_t> plain(args.chosen, args.chosen + args.first_row + args.num_rows);
        RejectDraftsOnHost(args);
        for (int row = args.first_row; row < args.first_row + args.num_rows; ++row) {
          const int32_t draft = args.arrays.token_ids[args.arrays.logits_indices[row] + 1];
          if (args.chosen[row] != draft) args.chosen[row] = plain[row];
        }
      });
  EXPECT_GT(ChiSquareDeviation(models, drawn_again), 50);
}

TEST(RejectDraftsTest, AcceptsAsOftenAsTheTwoDistributionsOverlap) {
  MarkovModels models = SomeMarkovModels({.temperature = 1.0f}, /*drafts_drawn=*/true);
  models.num_drafts = 1;
  const MarkovTexts texts = GenerateTexts(models, 50000, 1, 7, RejectDraftsOnHost);
  const std::vector<double> p = DistributionAfter(models, models.model, 0);
  const std::vector<double> q = DistributionAfter(models, models.drafter, 0);
  double overlap = 0;
  for (size_t i = 0; i < p.size(); ++i) overlap += std::min(p[i], q[i]);
  EXPECT_NEAR(static_cast<double>(texts.num_accepted) / static_cast<double>(texts.num_first_drafts),
              overlap, 0.01);
}

}  // namespace
}  // namespace reprise
