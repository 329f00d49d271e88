#include <limits>
#include <optional>
#include <vector>

#include "examples/decode/requests.h"
#include "gtest/gtest.h"
#include "reprise/graphs/graph_set_options.h"

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
  const ModelEngineOptions engine =
      EngineOptionsFor({.engine = {.scheduler = {.prefill_chunk = most}}}, requests, 2048);
  EXPECT_EQ(engine.runner.max_seq_len, 2048);
  EXPECT_EQ(engine.scheduler.prefill_chunk, 2048);
  EXPECT_EQ(engine.runner.max_num_tokens, 2048);
}

TEST(DecodeEngineOptionsTest, TakesWhatTheUserChose) {
  const std::vector<Request> requests = {RequestOf(30, 4)};
  const ModelEngineOptions engine =
      EngineOptionsFor({.engine = {.runner = {.cache = {.block_size = 5, .size = NumBlocks{9}},
                                              .graphs = {.mode = GraphSetOptions::Mode::kOff}},
                                   .scheduler = {.prefill_chunk = 3}}},
                       requests, 50);
  EXPECT_EQ(engine.scheduler.prefill_chunk, 3);
  EXPECT_EQ(engine.runner.cache.block_size, 5);
  EXPECT_EQ(engine.runner.cache.size, BlockMemory(NumBlocks{9}));
  EXPECT_EQ(engine.runner.graphs.mode, GraphSetOptions::Mode::kOff);
  EXPECT_EQ(engine.runner.max_steps_in_flight, std::nullopt);
}

TEST(DecodeEngineOptionsTest, PassesOnHowPromptsAreScheduled) {
  const std::vector<Request> requests = {RequestOf(30, 4)};
  const SchedulerPolicy plain = EngineOptionsFor({}, requests, 50).scheduler;
  EXPECT_EQ(plain.max_prefill_tokens_while_decoding, 0);
  EXPECT_EQ(plain.partial_hits, PartialHits::kNone);
  DecodeOptions options;
  options.engine.scheduler = {.max_prefill_tokens_while_decoding = 7,
                              .partial_hits = PartialHits::kCopied};
  const SchedulerPolicy chosen = EngineOptionsFor(options, requests, 50).scheduler;
  EXPECT_EQ(chosen.max_prefill_tokens_while_decoding, 7);
  EXPECT_EQ(chosen.partial_hits, PartialHits::kCopied);
}

TEST(DecodeEngineOptionsTest, DraftsHaveRoomInEveryStep) {
  const std::vector<Request> requests(100, RequestOf(3, 4));
  DecodeOptions options;
  options.engine.runner.speculation = {.max_drafts = 9, .proposer = NgramProposer{}};
  const ModelEngineOptions ngram = EngineOptionsFor(options, requests, 50);
  EXPECT_EQ(ngram.runner.speculation.max_drafts, 9);
  EXPECT_NE(ngram.runner.speculation.ngram(), nullptr);
  EXPECT_EQ(ngram.runner.max_num_tokens, kMaxDecodeRows * 10);
  EXPECT_EQ(EngineOptionsFor({}, requests, 50).runner.speculation.max_drafts, 0);
}

TEST(DecodeEngineOptionsTest, GraphsAreCapturedForTheRowsOfTheRun) {
  DecodeOptions options;
  options.engine.runner.graphs.sizes = {1, 2, 8};
  const std::vector<Request> requests(3, RequestOf(3, 4));
  EXPECT_EQ(EngineOptionsFor(options, requests, 50).runner.graphs.sizes, (std::vector<int>{1, 2}));
}

TEST(DecodeEngineOptionsTest, LeavesTheRestToTheRunner) {
  const ModelEngineOptions engine = EngineOptionsFor({}, {RequestOf(1, 1)}, 50);
  EXPECT_EQ(engine.runner.graphs.mode, std::nullopt);
  EXPECT_EQ(engine.runner.cache.size, BlockMemory());
  EXPECT_EQ(engine.runner.device.linear_choices_file, "");
}

TEST(DecodeEngineOptionsTest, LogitsAreKeptIfTheyAreWanted) {
  const ModelEngineOptions engine = EngineOptionsFor({.dump_logits = "/l"}, {RequestOf(1, 1)}, 50);
  EXPECT_EQ(engine.runner.logits.step_logits, StepLogits::kOfEvery);
  EXPECT_EQ(EngineOptionsFor({}, {RequestOf(1, 1)}, 50).runner.logits.step_logits,
            StepLogits::kIfSynchronous);
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
  const ModelEngineOptions engine = EngineOptionsFor({.perplexity = "/t"}, windows, 50);
  EXPECT_EQ(engine.runner.max_num_seqs, 1);
  EXPECT_EQ(engine.runner.logits.max_log_probs, 0);
  EXPECT_EQ(engine.runner.logits.max_earlier_logits, 39);
  EXPECT_EQ(EngineOptionsFor({.engine = {.scheduler = {.prefill_chunk = 1}}, .perplexity = "/t"},
                             windows, 50)
                .runner.logits.max_earlier_logits,
            0);
}

}  // namespace
}  // namespace reprise
