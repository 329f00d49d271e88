// The engine over models whose layers differ: scheduling, prefix reuse, preemption and windows
// together, against a dense forward in float64.

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/cache/prefix/prefix_match.h"
#include "reprise/engine/create_engine.h"
#include "reprise/runner/testing/layered_model.h"

namespace reprise {
namespace {

constexpr int kVocab = 37;

LayerSpec Full() {
  return {.params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 16, .head_dim_v = 16}};
}

LayerSpec Window(int span) {
  LayerSpec layer = Full();
  layer.params.window_left = span - 1;
  return layer;
}

LayerSpec Chunked(int span) {
  LayerSpec layer = Full();
  layer.chunk_size = span;
  return layer;
}

LayerSpec OfKind(AttentionKind kind) {
  LayerSpec layer = Full();
  layer.kind = kind;
  return layer;
}

std::vector<int32_t> RandomTokens(std::mt19937& rng, int length) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < length; ++i) tokens.push_back(static_cast<int32_t>(rng() % kVocab));
  return tokens;
}

class EngineLayersTest : public testing::Test {
 protected:
  EngineLayersTest() { at::set_num_threads(1); }

  // Runs the requests through an engine. Every token must have the largest logit of the dense
  // forward pass, up to rounding.
  void ExpectDense(const LayeredModelOptions& model_options, const ModelEngineOptions& options,
                   const std::vector<Request>& requests) {
    LayeredModelOptions sized = model_options;
    sized.vocab_size = kVocab;
    LayeredModel model(sized);
    auto engine = CreateEngine(&model, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::map<SequenceId, const Request*> request_of;
    for (const Request& request : requests) {
      const auto id = (*engine)->Add(request);
      ASSERT_TRUE(id.ok()) << id.status();
      request_of[*id] = &request;
    }
    std::map<SequenceId, std::vector<int32_t>> texts;
    std::vector<TokenEvent> events;
    while ((*engine)->has_work()) {
      const absl::Status status = (*engine)->Step(events);
      ASSERT_TRUE(status.ok()) << status;
      (*engine)->scheduler().CheckInvariants();
    }
    for (const TokenEvent& event : events)
      texts[event.sequence].push_back(event.token.value_or(-1));
    ASSERT_EQ(texts.size(), requests.size());
    for (const auto& [id, text] : texts) {
      const Request& request = *request_of[id];
      std::vector<int32_t> all = request.prompt;
      all.insert(all.end(), text.begin(), text.end());
      const at::Tensor logits = model.DenseLogits(all, request.encoder_tokens);
      ASSERT_EQ(static_cast<int>(text.size()), request.max_new_tokens);
      for (size_t i = 0; i < text.size(); ++i) {
        const at::Tensor row = logits[static_cast<int64_t>(request.prompt.size() + i) - 1];
        // The token's logit is the largest, up to the rounding of float32.
        EXPECT_GT(row[text[i]].item<double>(), row.max().item<double>() - 2e-4)
            << "sequence " << id << ", token " << i;
      }
    }
    num_replays_ = ModelRunnerOf(**engine).graph_report().num_replays();
    num_preemptions_ = (*engine)->scheduler().num_preemptions();
    num_swap_ins_ = (*engine)->scheduler().swap_statistics().num_swap_ins;
    num_found_ = (*engine)->scheduler().prefix_statistics().num_tokens_hit;
  }

  int64_t num_replays_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t num_swap_ins_ = 0;
  int64_t num_found_ = 0;
};

TEST_F(EngineLayersTest, PromptsShareTheirPrefixInEveryGroup) {
  std::mt19937 rng(3);
  const std::vector<int32_t> prefix = RandomTokens(rng, 40);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request = {.prompt = prefix, .max_new_tokens = 12};
    for (const int32_t token : RandomTokens(rng, 1 + i)) request.prompt.push_back(token);
    requests.push_back(request);
  }
  ExpectDense({.layers = {Window(9), Full(), Chunked(16)}},
              {.runner = {.max_num_seqs = 2,
                          .max_num_tokens = 24,
                          .max_seq_len = 80,
                          .cache = {.block_size = 4}},
               .scheduler = {.prefill_chunk = 16}},
              requests);
  EXPECT_GT(num_found_, 5 * 32);
  EXPECT_GT(num_replays_, 40);
}

TEST_F(EngineLayersTest, PartialPrefixBlocksAreCopiedInEveryGroup) {
  std::mt19937 rng(13);
  const std::vector<int32_t> prefix = RandomTokens(rng, 38);
  std::vector<Request> requests;
  for (int i = 0; i < 8; ++i) {
    Request request = {.prompt = prefix, .max_new_tokens = 12};
    for (const int32_t token : RandomTokens(rng, 1 + i)) request.prompt.push_back(token);
    requests.push_back(request);
  }
  ExpectDense({.layers = {Window(9), Full(), Chunked(16)}},
              {.runner = {.max_num_seqs = 2,
                          .max_num_tokens = 24,
                          .max_seq_len = 80,
                          .cache = {.block_size = 4}},
               .scheduler = {.prefill_chunk = 16, .partial_hits = PartialHits::kCopied}},
              requests);
  EXPECT_GT(num_found_, 5 * 36);  // 36 tokens of the prefix fill whole blocks
  EXPECT_GT(num_replays_, 40);
}

TEST_F(EngineLayersTest, PreemptionDoesNotChangeTexts) {
  std::mt19937 rng(4);
  std::vector<Request> requests;
  for (int i = 0; i < 6; ++i) {
    requests.push_back({.prompt = RandomTokens(rng, 10 + i), .max_new_tokens = 40});
  }
  ExpectDense({.layers = {Window(8), Full()}},
              {.runner = {.max_num_seqs = 4,
                          .max_num_tokens = 32,
                          .max_seq_len = 64,
                          .cache = {.block_size = 4, .size = NumBlocks{40}}}},
              requests);
  EXPECT_GT(num_preemptions_, 0);
  EXPECT_GT(num_replays_, 40);
}

// The whole cache holds 48 tokens; a decode attends to 7 of them. The default chunk is 512 tokens.
TEST_F(EngineLayersTest, AWindowModelServesLongSequencesInASmallCache) {
  std::mt19937 rng(9);
  for (const int max_steps_in_flight : {1, 2}) {
    ExpectDense({.layers = {Window(7)}},
                {.runner = {.max_num_seqs = 1,
                            .max_num_tokens = 512,
                            .max_seq_len = 128,
                            .max_steps_in_flight = max_steps_in_flight,
                            .cache = {.block_size = 16, .size = NumBlocks{4}}}},
                {{.prompt = RandomTokens(rng, 60), .max_new_tokens = 30},
                 {.prompt = RandomTokens(rng, 3), .max_new_tokens = 90}});
    EXPECT_GT(num_replays_, 100);
  }
}

TEST_F(EngineLayersTest, EncoderInputMayBeLongerThanMaxSeqLen) {
  std::mt19937 rng(8);
  std::vector<Request> requests;
  for (const int length : {40, 9, 33}) {
    requests.push_back({.prompt = RandomTokens(rng, 2),
                        .encoder_tokens = RandomTokens(rng, length),
                        .max_new_tokens = 5});
  }
  ExpectDense(
      {.layers = {OfKind(AttentionKind::kEncoder), Full(), OfKind(AttentionKind::kEncoderDecoder)},
       .max_encoder_position = 40},
      {.runner =
           {.max_num_seqs = 2, .max_num_tokens = 8, .max_seq_len = 8, .cache = {.block_size = 4}}},
      requests);
}

TEST_F(EngineLayersTest, EncodersServeRequestsOfDifferentLengths) {
  std::mt19937 rng(5);
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    requests.push_back({.prompt = RandomTokens(rng, 1 + i % 3),
                        .encoder_tokens = RandomTokens(rng, 1 + 5 * i),
                        .max_new_tokens = 15});
  }
  requests.push_back(requests[3]);  // the same input again
  ExpectDense(
      {.layers = {OfKind(AttentionKind::kEncoder), Full(), OfKind(AttentionKind::kEncoderDecoder),
                  Window(6), OfKind(AttentionKind::kEncoderDecoder)},
       .max_encoder_position = 40},
      {.runner = {.max_num_seqs = 3,
                  .max_num_tokens = 16,
                  .max_seq_len = 40,
                  .cache = {.block_size = 4}}},
      requests);
  EXPECT_GT(num_replays_, 30);
}

TEST_F(EngineLayersTest, SwapsKeysOfWindowsChunksAndEncoders) {
  std::mt19937 rng(6);
  std::vector<Request> requests;
  for (int i = 0; i < 7; ++i) {
    requests.push_back({.prompt = RandomTokens(rng, 1 + 2 * i),
                        .encoder_tokens = RandomTokens(rng, 3 + 2 * i),
                        .max_new_tokens = 30});
  }
  ExpectDense(
      {.layers = {OfKind(AttentionKind::kEncoder), Window(8), Chunked(16), Full(),
                  OfKind(AttentionKind::kEncoderDecoder)},
       .max_encoder_position = 20},
      {.runner = {.max_num_seqs = 4,
                  .max_num_tokens = 32,
                  .max_seq_len = 64,
                  .cache = {.block_size = 4, .size = NumBlocks{45}, .swap = NumBlocks{100}}},
       .scheduler = {.preemption = PreemptionMode::kSwap}},
      requests);
  EXPECT_GT(num_swap_ins_, 1);
  EXPECT_GT(num_replays_, 40);
}

}  // namespace
}  // namespace reprise
