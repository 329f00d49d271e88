// The model through an engine against the plain form.

#include "reprise/models/bart/bart_model.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/distributed/share.h"
#include "reprise/distributed/testing/thread_ranks.h"
#include "reprise/engine/create_engine.h"
#include "reprise/models/bart/bart_checkpoint.h"
#include "reprise/models/generate.h"

namespace reprise {
namespace {

using testing::HasSubstr;

// All sizes differ, so that no size can be used for another.
BartConfig TinyConfig() {
  BartConfig config;
  config.d_model = 48;
  config.vocab_size = 50;
  config.max_seq_len = 40;
  config.encoder = {.num_layers = 3, .num_heads = 2, .ffn_dim = 56};
  config.decoder = {.num_layers = 2, .num_heads = 4, .ffn_dim = 72};
  config.decoder_start_token_id = 2;
  return config;
}

std::unique_ptr<BartModel> Made(const BartCheckpoint& checkpoint, const BartConfig& config,
                                Collectives* collectives = nullptr) {
  auto weights = LoadBartWeights(checkpoint.folder(), config, {.ranks = RanksOf(collectives)});
  CHECK(weights.ok()) << weights.status();
  auto model = BartModel::Create(config, *std::move(weights), {.collectives = collectives});
  CHECK(model.ok()) << model.status();
  return *std::move(model);
}

std::vector<int32_t> Tokens(const BartConfig& config, int count, int seed) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back((i * i * 7 + 13 * seed + 3) % config.vocab_size);
  }
  return tokens;
}

// Sequences with inputs of all these lengths, at once; each decoder's first tokens are a prompt of
// its own length.
constexpr int kEncoderLengths[] = {1, 40, 7, 16, 17};

// On each rank; null: there is one.
void ExpectDenseOnRank(const BartConfig& config, const BartCheckpoint& checkpoint,
                       Collectives* collectives) {
  const std::unique_ptr<BartModel> model = Made(checkpoint, config, collectives);
  constexpr int kNumTokens = 20;
  for (const int chunk : {0, 3}) {
    SCOPED_TRACE(absl::StrCat("chunks of ", chunk));
    std::vector<Request> requests;
    for (const int length : kEncoderLengths) {
      const int seed = static_cast<int>(requests.size());
      const std::vector<int32_t> tokens = Tokens(config, kNumTokens, seed + 10);
      const auto prompt_end = tokens.begin() + 1 + 4 * seed;
      requests.push_back({.prompt = {tokens.begin(), prompt_end},
                          .encoder_tokens = Tokens(config, length, seed),
                          .forced_tokens = {prompt_end, tokens.end()}});
    }
    const ModelEngineOptions options = {.runner = {.max_num_seqs = 3,
                                                   .max_num_tokens = 40,
                                                   .max_steps_in_flight = 1,
                                                   .cache = {.block_size = 4},
                                                   .ranks = {.collectives = collectives}},
                                        .scheduler = {.prefill_chunk = chunk}};
    if (RanksOf(collectives).rank != 0) {
      const absl::Status followed = FollowEngine(model.get(), options);
      ASSERT_TRUE(followed.ok()) << followed;
      continue;
    }
    auto engine = CreateEngine(model.get(), options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    LogitsRecorder recorder(static_cast<int>(requests.size()));
    const absl::Status status = Generate(**engine, requests, [&](int i, const TokenEvent& event) {
      return recorder.Record(i, *LogitsOf(**engine, event));
    });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_GT(ModelRunnerOf(**engine).graph_report().num_replays(), 0);
    for (int i = 0; i < static_cast<int>(requests.size()); ++i) {
      const Request& request = requests[i];
      const at::Tensor got =
          at::tensor(std::vector<float>(recorder.rows(i).begin(), recorder.rows(i).end()))
              .view({recorder.num_rows(i), config.vocab_size});
      const at::Tensor expected =
          checkpoint.DenseLogits(request.encoder_tokens, Tokens(config, kNumTokens, i + 10))
              .narrow(0, std::ssize(request.prompt) - 1, std::ssize(request.forced_tokens));
      ASSERT_EQ(got.sizes(), expected.sizes());
      EXPECT_LT((got - expected).abs().max().item<double>(),
                1e-5 * expected.abs().max().item<double>())
          << "request " << i;
    }
  }
}

void ExpectDense(const BartConfig& config, const std::string& name) {
  ExpectDenseOnRank(config, BartCheckpoint(name, config), nullptr);
}

TEST(BartModelTest, ComputesWhatThePlainFormComputes) { ExpectDense(TinyConfig(), "bart_dense"); }

TEST(BartModelTest, EmbeddingsAreScaledIfTheConfigSaysSo) {
  BartConfig config = TinyConfig();
  config.scale_embedding = true;
  ExpectDense(config, "bart_scaled");
}

TEST(BartModelTest, MoreDecoderThanEncoder) {
  BartConfig config = TinyConfig();
  config.encoder = {.num_layers = 1, .num_heads = 6, .ffn_dim = 24};
  config.decoder = {.num_layers = 3, .num_heads = 1, .ffn_dim = 40};
  ExpectDense(config, "bart_decoder");
}

// Of 3 ranks the stacks' heads, inner elements and words are of different numbers, and the
// encoder's and the decoder's heads are not of the same widths.
TEST(BartModelTest, RanksWithUnequalSharesComputeWhatThePlainFormComputes) {
  BartConfig config = TinyConfig();
  config.encoder = {.num_layers = 2, .num_heads = 8, .ffn_dim = 56};
  config.decoder = {.num_layers = 2, .num_heads = 4, .ffn_dim = 71};
  config.scale_embedding = true;
  const BartCheckpoint checkpoint("bart_ranks", config);
  for (const int world : {2, 3}) {
    SCOPED_TRACE(absl::StrCat(world, " ranks"));
    const std::vector<absl::Status> results = RunThreadRanks(world, [&](Collectives& collectives) {
      at::set_num_threads(1);
      ExpectDenseOnRank(config, checkpoint, &collectives);
      return collectives.status();
    });
    EXPECT_THAT(results, testing::Each(absl::OkStatus()));
  }
}

TEST(BartModelTest, EveryRankNeedsAHeadOfBothStacks) {
  BartConfig config = TinyConfig();  // of 2 and 4 heads
  EXPECT_TRUE(BartShareOf(config, {.rank = 1, .world = 2}).ok());
  const auto refused = [&] {
    const absl::Status status = BartShareOf(config, {.rank = 0, .world = 3}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(), HasSubstr("encoder.num_heads"));
  config.encoder.num_heads = 3;
  config.decoder.num_heads = 2;
  EXPECT_THAT(refused(), HasSubstr("decoder.num_heads"));
}

TEST(BartModelTest, TheSpecHasTheEncoderAndTwoLayersForEachOfTheDecoder) {
  const BartConfig config = TinyConfig();
  const BartCheckpoint checkpoint("bart_spec", config);
  const std::unique_ptr<BartModel> model = Made(checkpoint, config);
  std::vector<AttentionKind> kinds;
  for (const LayerSpec& layer : model->spec().layers) kinds.push_back(layer.kind);
  EXPECT_THAT(kinds, testing::ElementsAre(AttentionKind::kEncoder, AttentionKind::kEncoder,
                                          AttentionKind::kEncoder, AttentionKind::kDecoder,
                                          AttentionKind::kEncoderDecoder, AttentionKind::kDecoder,
                                          AttentionKind::kEncoderDecoder));
  EXPECT_EQ(model->spec().layers[0].params.head_dim_qk, 24);
  EXPECT_EQ(model->spec().layers[4].params.head_dim_qk, 12);
  EXPECT_EQ(model->spec().max_position, 40);
  EXPECT_EQ(model->spec().max_encoder_position, 40);
}

TEST(BartModelTest, InputsBeyondThePositionsAreRefused) {
  const BartConfig config = TinyConfig();
  const BartCheckpoint checkpoint("bart_long", config);
  const std::unique_ptr<BartModel> model = Made(checkpoint, config);
  auto engine = CreateEngine(model.get(), {.runner = {.max_num_seqs = 1}});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const auto added = (*engine)->Add({.prompt = {2}, .encoder_tokens = Tokens(config, 41, 0)});
  EXPECT_THAT(std::string(added.status().message()),
              HasSubstr("encoder_tokens are too long: expected at most 40, got 41"));
  EXPECT_TRUE((*engine)->Add({.prompt = {2}, .encoder_tokens = Tokens(config, 40, 0)}).ok());
}

TEST(BartModelTest, WeightsOfAnotherShapeAreRefusedByName) {
  const BartConfig config = TinyConfig();
  const BartCheckpoint checkpoint("bart_shapes", config);
  const auto error_with = [&](void (*change)(BartConfig&)) {
    auto weights = LoadBartWeights(checkpoint.folder(), config, {});
    CHECK(weights.ok()) << weights.status();
    BartConfig other = config;
    change(other);
    return std::string(BartModel::Create(other, *std::move(weights)).status().message());
  };
  EXPECT_THAT(error_with([](BartConfig& c) { c.vocab_size = 51; }), HasSubstr("embedding must be"));
  EXPECT_THAT(error_with([](BartConfig& c) { c.max_seq_len = 39; }), HasSubstr("positions must"));
  EXPECT_EQ(error_with([](BartConfig& c) { c.encoder.num_layers = 2; }),
            "encoder must have num_layers: expected 2, got 3");
  EXPECT_EQ(error_with([](BartConfig& c) { c.decoder.num_layers = 3; }),
            "decoder must have num_layers: expected 3, got 2");
  EXPECT_THAT(error_with([](BartConfig& c) { c.decoder.ffn_dim = 71; }),
              HasSubstr("feed_forward.up must be"));
}

}  // namespace
}  // namespace reprise
