#include <limits>
#include <optional>
#include <vector>

#include "examples/decode/requests.h"
#include "graphs/graph_set_options.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

Request RequestOf(int num_prompt, int max_new_tokens) {
  return {.prompt = std::vector<int32_t>(num_prompt), .max_new_tokens = max_new_tokens};
}

TEST(DecodeEngineOptionsTest, ARowARequestUpToTheMost) {
  const std::vector<Request> requests(100, RequestOf(3, 4));
  EXPECT_EQ(EngineOptionsFor({}, {requests.data(), 1}, 50).runner.max_num_seqs, 1);
  EXPECT_EQ(EngineOptionsFor({}, {requests.data(), 17}, 50).runner.max_num_seqs, 17);
  EXPECT_EQ(EngineOptionsFor({}, requests, 50).runner.max_num_seqs, kMaxDecodeRows);
}

TEST(DecodeEngineOptionsTest, SequencesAreAsLongAsTheLongestCanBecome) {
  const std::vector<Request> requests = {RequestOf(3, 10), RequestOf(20, 1)};
  EXPECT_EQ(EngineOptionsFor({}, requests, 50).runner.max_seq_len, 21);
  EXPECT_EQ(EngineOptionsFor({}, requests, 15).runner.max_seq_len, 15);
}

TEST(DecodeEngineOptionsTest, ForcedTokensCountInPlaceOfNewOnes) {
  Request request = RequestOf(3, 40);
  request.forced_tokens = {1, 2};
  EXPECT_EQ(EngineOptionsFor({}, {request}, 50).runner.max_seq_len, 5);
}

TEST(DecodeEngineOptionsTest, EncodersServeTheLongestInput) {
  Request request = RequestOf(1, 4);
  EXPECT_EQ(EngineOptionsFor({}, {request}, 50).runner.max_encoder_tokens, std::nullopt);
  request.encoder_tokens.resize(30);
  EXPECT_EQ(EngineOptionsFor({}, {RequestOf(1, 4), request}, 50).runner.max_encoder_tokens, 30);
  EXPECT_EQ(EngineOptionsFor({}, {request}, 20).runner.max_encoder_tokens, 20);
}

TEST(DecodeEngineOptionsTest, LimitsOfIntDoNotOverflow) {
  const int most = std::numeric_limits<int>::max();
  const std::vector<Request> requests = {RequestOf(3, most)};
  const EngineOptions engine = EngineOptionsFor({.prefill_chunk = most}, requests, 2048);
  EXPECT_EQ(engine.runner.max_seq_len, 2048);
  EXPECT_EQ(engine.prefill_chunk, 2048);
  EXPECT_EQ(engine.runner.max_num_tokens, 2048);
}

TEST(DecodeEngineOptionsTest, TakesWhatTheUserChose) {
  const std::vector<Request> requests = {RequestOf(30, 4)};
  const EngineOptions engine = EngineOptionsFor(
      {.graphs = GraphChoice::kOff, .block_size = 5, .num_blocks = 9, .prefill_chunk = 3}, requests,
      50);
  EXPECT_EQ(engine.prefill_chunk, 3);
  EXPECT_EQ(engine.runner.block_size, 5);
  EXPECT_EQ(engine.runner.num_blocks, 9);
  EXPECT_EQ(engine.runner.graphs, GraphSetOptions::Mode::kOff);
  EXPECT_EQ(engine.runner.max_steps_in_flight, std::nullopt);
}

TEST(DecodeEngineOptionsTest, DraftsHaveRoomInEveryStep) {
  const std::vector<Request> requests(100, RequestOf(3, 4));
  using Proposer = SpeculationOptions::Proposer;
  const EngineOptions ngram =
      EngineOptionsFor({.draft = DraftChoice{.num_tokens = 9}}, requests, 50);
  EXPECT_EQ(ngram.runner.speculation.max_drafts, 9);
  EXPECT_EQ(ngram.runner.speculation.proposer, Proposer::kNgram);
  EXPECT_EQ(ngram.runner.max_num_tokens, kMaxDecodeRows * 10);
  const EngineOptions model =
      EngineOptionsFor({.draft = DraftChoice{.model = "/m", .num_tokens = 2}}, requests, 50);
  EXPECT_EQ(model.runner.speculation.proposer, Proposer::kModel);
  EXPECT_EQ(EngineOptionsFor({}, requests, 50).runner.speculation.max_drafts, 0);
  EXPECT_EQ(model.runner.speculation.acceptance, DraftAcceptance::kSameText);
  const EngineOptions rejection = EngineOptionsFor(
      {.draft = DraftChoice{.acceptance = DraftAcceptance::kRejection}}, requests, 50);
  EXPECT_EQ(rejection.runner.speculation.acceptance, DraftAcceptance::kRejection);
}

TEST(DecodeEngineOptionsTest, LeavesTheRestToTheRunner) {
  const EngineOptions engine = EngineOptionsFor({}, {RequestOf(1, 1)}, 50);
  EXPECT_EQ(engine.runner.graphs, std::nullopt);
  EXPECT_EQ(engine.runner.num_blocks, std::nullopt);
  EXPECT_EQ(engine.runner.linear_choices_file, "");
}

TEST(DecodeEngineOptionsTest, ChoicesOfProductsAreKeptInTheFile) {
  const EngineOptions engine =
      EngineOptionsFor({.runner = {.linear_choices_file = "/c"}}, {RequestOf(1, 1)}, 50);
  EXPECT_EQ(engine.runner.linear_choices_file, "/c");
}

TEST(DecodeEngineOptionsTest, TheCacheIsStoredAsChosen) {
  const EngineOptions engine = EngineOptionsFor({.runner = {.kv_order = KvOrder::kHND,
                                                            .kv_form = KvForm::kDiffKv,
                                                            .kv_scales = KvScaleChoice::kPerHead,
                                                            .calibrates_kv = true,
                                                            .graph_memory_bytes = 5}},
                                                {RequestOf(1, 1)}, 50);
  EXPECT_EQ(engine.runner.kv_order, KvOrder::kHND);
  EXPECT_EQ(engine.runner.kv_form, KvForm::kDiffKv);
  EXPECT_EQ(engine.runner.kv_scale_shape, KvScaleShape::kPerHead);
  EXPECT_EQ(engine.runner.kv_calibration, KvCalibration::kFirstStep);
  EXPECT_EQ(engine.runner.graph_memory_budget_bytes, 5);
  const EngineOptions plain = EngineOptionsFor({}, {RequestOf(1, 1)}, 50);
  EXPECT_EQ(plain.runner.kv_order, KvOrder::kNHD);
  EXPECT_EQ(plain.runner.kv_form, KvForm::kPair);
  EXPECT_EQ(plain.runner.kv_scale_shape, KvScaleShape::kPerLayer);
  EXPECT_EQ(plain.runner.kv_calibration, KvCalibration::kOff);
  EXPECT_EQ(plain.runner.graph_memory_budget_bytes, std::nullopt);
}

TEST(DecodeEngineOptionsTest, LogitsAreKeptIfTheyAreWanted) {
  const EngineOptions engine = EngineOptionsFor({.dump_logits = "/l"}, {RequestOf(1, 1)}, 50);
  EXPECT_EQ(engine.runner.step_logits, StepLogits::kOfEvery);
  EXPECT_EQ(EngineOptionsFor({}, {RequestOf(1, 1)}, 50).runner.step_logits, StepLogits::kOfNewest);
}

TEST(DecodeEngineOptionsTest, StagesBehindLogitsAreProvidedForIfTheyAreWanted) {
  const std::vector<Request> plain = {RequestOf(1, 1)};
  EXPECT_FALSE(EngineOptionsFor({}, plain, 50).runner.logits.penalties);
  EXPECT_EQ(EngineOptionsFor({}, plain, 50).runner.logits.max_log_probs, -1);
  EXPECT_EQ(EngineOptionsFor({.num_log_probs = 3}, plain, 50).runner.logits.max_log_probs, 3);
  Request penalised = RequestOf(1, 1);
  penalised.sampling.presence_penalty = 0.5f;
  EXPECT_TRUE(EngineOptionsFor({}, {penalised}, 50).runner.logits.penalties);
}

TEST(DecodeEngineOptionsTest, TextsAreScoredOneAfterTheOtherInWholeChunks) {
  const std::vector<Request> windows(3, RequestOf(40, 0));
  const EngineOptions engine = EngineOptionsFor({.perplexity = "/t"}, windows, 50);
  EXPECT_EQ(engine.runner.max_num_seqs, 1);
  EXPECT_EQ(engine.runner.logits.max_log_probs, 0);
  EXPECT_EQ(engine.runner.max_earlier_logits, 39);
  EXPECT_EQ(EngineOptionsFor({.prefill_chunk = 1, .perplexity = "/t"}, windows, 50)
                .runner.max_earlier_logits,
            0);
}

}  // namespace
}  // namespace reprise
