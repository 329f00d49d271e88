// Models whose layers see a window or a chunk hold few blocks, however long a sequence becomes, and
// compute what they would over all keys.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/dense_decoder.h"
#include "reprise/models/generate.h"
#include "reprise/runner/ops/linear.h"
#ifdef REPRISE_TEST_ON_GPU
#include <c10/cuda/CUDAFunctions.h>
#endif

namespace reprise {
namespace {

#ifdef REPRISE_TEST_ON_GPU
const c10::Device kDevice(c10::kCUDA, 0);
#else
const c10::Device kDevice(c10::kCPU);
#endif

constexpr int kSpan = 16;  // of windows and chunks
constexpr int kLength = 16 * kSpan + 5;
constexpr int kPromptLength = 3 * kSpan + 1;
constexpr int kPrefillChunk = 8;
constexpr int kBlockSize = 4;

DecoderConfig TinyConfig() {
  DecoderConfig config;
  config.hidden_size = 32;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_q_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 50;
  config.max_seq_len = kLength;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  return config;
}

// The same model, elsewhere.
std::unique_ptr<DecoderModel> Moved(const DecoderModel& model, c10::Device device) {
  DecoderWeights weights = model.weights();
  const auto move = [&](at::Tensor& tensor) { tensor = tensor.to(device); };
  const auto move_linear = [&](Linear& linear) {
    auto moved = Linear::Create(linear.weight().to(device), std::nullopt);
    CHECK(moved.ok()) << moved.status();
    linear = *std::move(moved);
  };
  move(weights.embedding);
  move(weights.final_norm);
  move_linear(weights.lm_head);
  for (DecoderLayerWeights& layer : weights.layers) {
    move(layer.input_norm);
    move(layer.mlp_norm);
    for (Linear* linear : {&*layer.qkv, &layer.o, &*layer.gate_up, &*layer.down}) {
      move_linear(*linear);
    }
  }
  auto moved = DecoderModel::Create(model.config(), std::move(weights), {});
  CHECK(moved.ok()) << moved.status();
  return *std::move(moved);
}

// On the CPU.
std::unique_ptr<DecoderModel> Made(const DecoderConfig& config) {
  auto weights = MakeRandomWeights(config, {.dtype = DType::kFloat32, .seed = 3});
  CHECK(weights.ok()) << weights.status();
  for (DecoderLayerWeights& layer : weights->layers) {
    at::Tensor qkv = layer.qkv->weight();
    qkv.mul_(40);  // attention that is far from uniform
  }
  auto model = DecoderModel::Create(config, *std::move(weights), {});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

struct LongRun {
  std::vector<std::vector<int32_t>> tokens;  // of each sequence
  std::vector<at::Tensor> logits;            // [generated, vocab_size] of each
  int peak_used = 0;                         // blocks
  int64_t num_preemptions = 0;
  int64_t num_replays = 0;
};

// Greedily, sequences of kLength tokens side by side; sequence i's prompt begins with token i.
LongRun Generated(DecoderModel& model, int num_seqs, BlockMemory cache) {
  auto engine =
      CreateEngine(&model, {.runner = {.max_num_seqs = num_seqs,
                                       .max_num_tokens = 32,
                                       .max_seq_len = kLength,
                                       .max_steps_in_flight = 1,
                                       .cache = {.block_size = kBlockSize, .size = cache}},
                            .scheduler = {.prefill_chunk = kPrefillChunk}});
  CHECK(engine.ok()) << engine.status();
  LongRun run;
  std::vector<Request> requests;
  for (int i = 0; i < num_seqs; ++i) {
    Request request = {.max_new_tokens = kLength - kPromptLength};
    for (int j = 0; j < kPromptLength; ++j) request.prompt.push_back((i + j * j * 7) % 50);
    run.tokens.emplace_back(request.prompt.begin(), request.prompt.end());
    requests.push_back(std::move(request));
  }
  LogitsRecorder recorder(num_seqs);
  const absl::Status status = Generate(**engine, requests, [&](int i, const TokenEvent& event) {
    run.tokens[i].push_back(*event.token);
    return recorder.Record(i, *LogitsOf(**engine, event));
  });
  CHECK(status.ok()) << status;
  for (int i = 0; i < num_seqs; ++i) {
    run.logits.push_back(
        at::tensor(std::vector<float>(recorder.rows(i).begin(), recorder.rows(i).end()))
            .view({-1, model.config().vocab_size}));
  }
  run.peak_used = (*engine)->scheduler().blocks().pool().peak_used();
  run.num_preemptions = (*engine)->scheduler().num_preemptions();
  run.num_replays = ModelRunnerOf(**engine).graph_report().num_replays();
  return run;
}

// Blocks of `tokens` keys that begin anywhere in one.
int BlocksOf(int tokens) { return (tokens + kBlockSize - 2) / kBlockSize + 1; }

// The most that a sequence holds in a group of layers that see `span` tokens: what the first query
// of a step sees, and the step's own tokens.
constexpr int kStepTokens = kPrefillChunk;

class LongContextTest : public testing::Test {
 protected:
#ifdef REPRISE_TEST_ON_GPU
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  }
#endif

  // For a model of these layers, each sequence holds at most `blocks_per_seq` blocks, decodes by
  // replays, and its logits and tokens are those of the plain form over all tokens.
  static void ExpectBounded(const DecoderConfig& config, int blocks_per_seq) {
    constexpr int kNumSeqs = 3;
    const std::unique_ptr<DecoderModel> plain = Made(config);
    const std::unique_ptr<DecoderModel> model = Moved(*plain, kDevice);
    const LongRun ample = Generated(*model, kNumSeqs, {});
    EXPECT_LE(ample.peak_used, kNumSeqs * blocks_per_seq);
    EXPECT_GT(ample.num_replays, kLength - kPromptLength - 5);
    // With room for no more than that (and the null block) no sequence is preempted.
    const LongRun tight = Generated(*model, kNumSeqs, NumBlocks{kNumSeqs * blocks_per_seq + 1});
    EXPECT_EQ(tight.num_preemptions, 0);
    EXPECT_EQ(tight.tokens, ample.tokens);
    for (int i = 0; i < kNumSeqs; ++i) {
      SCOPED_TRACE(absl::StrCat("sequence ", i));
      ASSERT_EQ(ample.tokens[i].size(), static_cast<size_t>(kLength));
      const at::Tensor expected = DenseLogits(*plain, ample.tokens[i])
                                      .narrow(0, kPromptLength - 1, kLength - kPromptLength);
      // The tokens are those of a model that forgets nothing, wherever rounding does not decide.
      const auto [best, at_best] = expected.topk(2, 1);
      const at::Tensor chosen = at::tensor(
          std::vector<int64_t>(ample.tokens[i].begin() + kPromptLength, ample.tokens[i].end()));
      const at::Tensor is_decided = (best.select(1, 0) - best.select(1, 1)).gt(1e-3);
      EXPECT_GT(is_decided.sum().item<int64_t>(), (kLength - kPromptLength) * 9 / 10);
      EXPECT_TRUE((at_best.select(1, 0).eq(chosen) | ~is_decided).all().item<bool>());
      for (const LongRun* run : {&ample, &tight}) {
        EXPECT_LT((run->logits[i] - expected).abs().max().item<double>(),
                  1e-4 * expected.abs().max().item<double>());
      }
    }
  }
};

TEST_F(LongContextTest, AWindowOfSixteenthTheLengthBoundsTheBlocks) {
  DecoderConfig config = TinyConfig();
  config.attention = {{.window = kSpan}, {.window = kSpan}};
  ExpectBounded(config, BlocksOf(kSpan - 1 + kStepTokens));
}

TEST_F(LongContextTest, AChunkOfSixteenthTheLengthBoundsTheBlocks) {
  DecoderConfig config = TinyConfig();
  config.attention = {{.chunk = kSpan}, {.chunk = kSpan}};
  // A step's tokens may reach into the next chunk.
  ExpectBounded(config, BlocksOf(kSpan - 1 + kStepTokens));
}

TEST_F(LongContextTest, LayersOfTwoWindowsHoldWhatEachNeeds) {
  DecoderConfig config = TinyConfig();
  config.attention = {{.window = kSpan}, {.window = 3 * kSpan}};
  ExpectBounded(config, BlocksOf(kSpan - 1 + kStepTokens) + BlocksOf(3 * kSpan - 1 + kStepTokens));
}

TEST_F(LongContextTest, BesideFullLayersOnlyTheChunkedOnesAreBounded) {
  DecoderConfig config = TinyConfig();
  config.attention = {{.chunk = kSpan}, {.rotates = false}};
  config.temperature = QueryTemperature{.attn_scale = 0.1f, .floor_scale = 32};
  config.qk_norm = QkNorm::kPlain;
  ExpectBounded(config, BlocksOf(kSpan - 1 + kStepTokens) + BlocksOf(kLength));
}

TEST_F(LongContextTest, FullLayersHoldEveryBlock) {
  const std::unique_ptr<DecoderModel> model = Moved(*Made(TinyConfig()), kDevice);
  const LongRun run = Generated(*model, 1, {});
  EXPECT_GE(run.peak_used, (kLength - 1) / kBlockSize);  // or the others show nothing
}

}  // namespace
}  // namespace reprise
