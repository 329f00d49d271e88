#include "reprise/runner/model_runner_options.h"

#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/distributed/collectives.h"
#include "reprise/runner/speculation/drafter.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ModelSpec Spec() {
  return {
      .layers = std::vector<LayerSpec>(
          3, {.params = {.num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 8, .head_dim_v = 8}}),
      .vocab_size = 10,
      .max_position = 64,
      .dtype = DType::kBFloat16};
}

ModelRunnerOptions Resolved(ModelRunnerOptions options) {
  options.cache.block_size = 4;
  auto resolved = ResolveRunnerOptions(options, Spec());
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

TEST(ModelRunnerOptionsTest, DefaultsFollowTheModelAndTheDevice) {
  const ModelRunnerOptions on_cpu = Resolved({});
  EXPECT_EQ(on_cpu.max_seq_len, 64);
  EXPECT_EQ(on_cpu.cache.dtype, DType::kBFloat16);
  EXPECT_EQ(on_cpu.graphs.mode, GraphSetOptions::Mode::kLazy);
  EXPECT_EQ(on_cpu.max_steps_in_flight, 1);

  ModelSpec spec = Spec();
  spec.device = c10::Device(c10::kCUDA, 0);
  const auto on_gpu = ResolveRunnerOptions({}, spec);
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_EQ(on_gpu->graphs.mode, GraphSetOptions::Mode::kEager);
  EXPECT_EQ(on_gpu->max_steps_in_flight, 2);
}

class NoDrafter final : public Drafter {
 public:
  absl::Status Propose(const DraftStep&) override { return absl::OkStatus(); }
};

TEST(ModelRunnerOptionsTest, SmallDraftCountsHaveGraphs) {
  const auto sizes = [](const SpeculationOptions& speculation) {
    return Resolved({.speculation = speculation}).speculation.graph_num_drafts;
  };
  EXPECT_THAT(sizes({}), IsEmpty());
  EXPECT_THAT(sizes({.max_drafts = 1}), ElementsAre(1));
  EXPECT_THAT(sizes({.max_drafts = 3, .proposer = NgramProposer{}}), ElementsAre(1, 2, 3));
  EXPECT_THAT(sizes({.max_drafts = 4, .proposer = NgramProposer{}}), ElementsAre(1, 2, 4));
  EXPECT_THAT(sizes({.max_drafts = 16}), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(sizes({.max_drafts = 4, .graph_num_drafts = {3, 4}}), ElementsAre(3, 4));
  // Trees that are proposed: whole levels. Trees that the caller supplies have an unknown shape:
  // only the largest count.
  EXPECT_THAT(sizes({.max_drafts = 30, .shape = DraftShape::kTree}), ElementsAre(30));
  NoDrafter drafter;
  EXPECT_THAT(sizes({.max_drafts = 8,
                     .shape = DraftShape::kTree,
                     .tree = {0, 0, 1, 2, 3, 4, 5, 6},
                     .proposer = CustomProposer{drafter}}),
              ElementsAre(2, 4, 8));
}

// Rank 1 of `world`; its collectives do nothing.
class SomeRanks final : public Collectives {
 public:
  explicit SomeRanks(int world = 2) : Collectives({.rank = 1, .world = world}) {}
  std::string Fingerprint() const override { return "two"; }

 protected:
  absl::Status DoAllReduce(at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoAllGather(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoReduceScatter(const at::Tensor&, at::Tensor&) override { return absl::OkStatus(); }
  absl::Status DoBroadcast(at::Tensor&, int) override { return absl::OkStatus(); }
  absl::Status DoBarrier() override { return absl::OkStatus(); }
};

TEST(ModelRunnerOptionsTest, BlockSizeOfShardedKeysSpansAllRanks) {
  SomeRanks ranks;
  EXPECT_EQ(Resolved({.ranks = {.collectives = &ranks}}).cache.block_size, 4);
  const ModelRunnerOptions sharded =
      Resolved({.ranks = {.collectives = &ranks, .context_ranks = RankOptions::kAllRanks},
                .debug = {.context_interleave = 2}});
  EXPECT_EQ(sharded.cache.block_size, 8);
  EXPECT_EQ(sharded.device.cascade, CascadeMode::kOff);
  const ModelRunnerOptions alone = Resolved({.ranks = {.context_ranks = RankOptions::kAllRanks}});
  EXPECT_EQ(alone.cache.block_size, 4);
  EXPECT_FALSE(alone.ranks.shards_context());
}

TEST(ModelRunnerOptionsTest, ContextRanksMayBePartOfTheRanks) {
  SomeRanks ranks(6);
  const auto resolved = [&](int context_ranks) {
    return Resolved({.ranks = {.collectives = &ranks, .context_ranks = context_ranks}});
  };
  EXPECT_EQ(resolved(RankOptions::kAllRanks).ranks.context_ranks, 6);
  EXPECT_EQ(resolved(RankOptions::kAllRanks).cache.block_size, 24);
  EXPECT_EQ(resolved(3).ranks.context_ranks, 3);
  EXPECT_EQ(resolved(3).cache.block_size, 12);
  EXPECT_TRUE(resolved(3).ranks.shards_context());
  EXPECT_FALSE(resolved(1).ranks.shards_context());
  EXPECT_EQ(resolved(1).cache.block_size, 4);
  const auto refused = [&](int context_ranks) {
    const absl::Status status =
        ResolveRunnerOptions({.ranks = {.collectives = &ranks, .context_ranks = context_ranks}},
                             Spec())
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  for (const int context_ranks : {-1, 4, 12}) {
    EXPECT_THAT(refused(context_ranks),
                HasSubstr("context_ranks must divide the number of ranks, 6: got"));
  }
}

TEST(ModelRunnerOptionsTest, SwapOfZeroMeansNoSwap) {
  EXPECT_FALSE(Resolved({}).cache.swaps());
  EXPECT_FALSE(Resolved({.cache = {.swap = NumBlocks{0}}}).cache.swaps());
  EXPECT_FALSE(Resolved({.cache = {.swap = NumBytes{0}}}).cache.swaps());
  EXPECT_TRUE(Resolved({.cache = {.swap = NumBlocks{2}}}).cache.swaps());
  EXPECT_EQ(Resolved({.cache = {.swap = NumBytes{9}}}).cache.swap, BlockMemory(NumBytes{9}));
}

TEST(ModelRunnerOptionsTest, RejectsContextRanksWithFeaturesThatNeedAllKeys) {
  SomeRanks ranks;
  const auto refused = [&](const std::function<void(ModelRunnerOptions&)>& change,
                           const std::function<void(ModelSpec&)>& change_spec = nullptr) {
    ModelRunnerOptions options = {
        .ranks = {.collectives = &ranks, .context_ranks = RankOptions::kAllRanks}};
    ModelSpec spec = Spec();
    if (change != nullptr) change(options);
    if (change_spec != nullptr) change_spec(spec);
    const absl::Status status = ResolveRunnerOptions(options, spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto& options) { options.device.cascade = CascadeMode::kAuto; }),
              HasSubstr("ranks.context_ranks above 1 exclude device.cascade"));
  EXPECT_THAT(
      refused([](auto& options) { options.device.batch_invariance = BatchInvariance::kOn; }),
      HasSubstr("exclude device.batch_invariance"));
  EXPECT_THAT(refused([](auto& options) {
                options.cache.dtype = DType::kFp8E4M3;
                options.cache.calibration = KvCalibration::kFirstStep;
              }),
              HasSubstr("exclude cache.calibration"));
  EXPECT_THAT(refused([](auto& options) { options.debug.context_interleave = 0; }),
              HasSubstr("context_interleave"));
  EXPECT_THAT(
      refused([](auto& options) { options.debug.context_interleave = 3; }),
      HasSubstr("cache.block_size must be a multiple of debug.context_interleave (3), got 16"));
  EXPECT_THAT(refused([](auto& options) { options.cache.block_size = 1 << 30; }),
              HasSubstr("block_size is too large"));
  EXPECT_THAT(refused(nullptr, [](auto& spec) { spec.layers[1].chunk_size = 8; }),
              HasSubstr("layer 1 of the model's spec has chunks"));
  static constexpr float kSinks[4] = {};
  EXPECT_THAT(refused([](auto& options) { options.debug.context_interleave = 4; },
                      [](auto& spec) {
                        spec.layers[2].params.sinks = kSinks;
                        spec.layers[2].params.window_left = 6;
                      }),
              HasSubstr("the window of layer 2, which has sinks, must span a run of each rank: "
                        "expected at least 8 tokens, got 7"));
}

TEST(ModelRunnerOptionsTest, MixedGraphsAreForGpusOrOnRequest) {
  EXPECT_EQ(Resolved({}).graphs.mixed, MixedGraphs::kOff);
  EXPECT_TRUE(Resolved({.graphs = {.mixed_tokens = {32}}}).graphs.mixed_tokens.empty());
  const ModelRunnerOptions on =
      Resolved({.max_num_seqs = 20, .max_num_tokens = 130, .graphs = {.mixed = MixedGraphs::kOn}});
  EXPECT_THAT(on.graphs.mixed_tokens, testing::ElementsAre(64, 128, 130));
  EXPECT_THAT(on.debug.mixed_graph_sizes, testing::ElementsAre(16, 20));
  const ModelRunnerOptions given =
      Resolved({.graphs = {.mixed = MixedGraphs::kOn, .mixed_tokens = {32, 512}},
                .debug = {.mixed_graph_sizes = {5}}});
  EXPECT_THAT(given.graphs.mixed_tokens, testing::ElementsAre(32, 512));
  EXPECT_THAT(given.debug.mixed_graph_sizes, testing::ElementsAre(5));

  ModelSpec spec = Spec();
  spec.device = c10::Device(c10::kCUDA, 0);
  const auto on_gpu = ResolveRunnerOptions({}, spec);
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_EQ(on_gpu->graphs.mixed, MixedGraphs::kOn);
  EXPECT_EQ(on_gpu->graphs.mixed_tokens.back(), 512);
  EXPECT_THAT(on_gpu->debug.mixed_graph_sizes, testing::ElementsAre(8));
}

TEST(ModelRunnerOptionsTest, RejectsOptionsByNameAndValue) {
  const auto refused = [](ModelRunnerOptions options) {
    const auto resolved = ResolveRunnerOptions(options, Spec());
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(resolved.status().message());
  };
  EXPECT_THAT(refused({.max_num_seqs = 0}), HasSubstr("max_num_seqs"));
  EXPECT_THAT(refused({.max_num_seqs = 8, .max_num_tokens = 7}),
              HasSubstr("max_num_tokens is too small: expected at least 8, got 7"));
  EXPECT_THAT(refused({.graphs = {.mixed = MixedGraphs::kOn, .mixed_tokens = {64, 513}}}),
              HasSubstr("graphs.mixed_tokens must not pass max_num_tokens: expected at most 512, "
                        "got 513"));
  EXPECT_THAT(refused({.max_seq_len = 65}), HasSubstr("expected at most 64, got 65"));
  EXPECT_THAT(refused({.max_seq_len = 0}), HasSubstr("max_seq_len"));
  EXPECT_THAT(refused({.cache = {.block_size = 0}}), HasSubstr("block_size"));
  EXPECT_THAT(refused({.cache = {.size = NumBlocks{1}}}),
              HasSubstr("cache.size is too small: expected at least 2, got 1"));
  EXPECT_THAT(refused({.cache = {.swap = NumBlocks{-1}}}), HasSubstr("cache.swap is too small"));
  EXPECT_THAT(refused({.cache = {.swap = NumBlocks{1}}}), HasSubstr("or at least 2"));
  EXPECT_THAT(refused({.cache = {.swap = NumBytes{-1}}}), HasSubstr("cache.swap is too small"));
  EXPECT_THAT(refused({.max_steps_in_flight = 0}), HasSubstr("max_steps_in_flight"));
  EXPECT_THAT(refused({.max_num_tokens = 99, .logits = {.max_earlier_logits = 100}}),
              HasSubstr("max_earlier_logits: expected 0 to 99, got 100"));
  EXPECT_THAT(refused({.logits = {.max_earlier_logits = -1}}), HasSubstr("max_earlier_logits"));
}

TEST(ModelRunnerOptionsTest, CascadeDefaultsToAutoIfMeasuredAndAllowed) {
  EXPECT_EQ(Resolved({}).device.cascade, CascadeMode::kOff);
  EXPECT_EQ(Resolved({.device = {.cascade = CascadeMode::kAuto}}).device.cascade,
            CascadeMode::kAuto);
  ModelSpec spec = Spec();
  spec.device = c10::Device(c10::kCUDA, 0);
  EXPECT_EQ(ResolveRunnerOptions({}, spec)->device.cascade, CascadeMode::kAuto);
  ModelRunnerOptions options = {.device = {.batch_invariance = BatchInvariance::kOn}};
  EXPECT_EQ(ResolveRunnerOptions(options, spec)->device.cascade, CascadeMode::kOff);
  options.device.cascade = CascadeMode::kAuto;
  const absl::Status refused = ResolveRunnerOptions(options, spec).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("cascade must be off with device.batch_invariance"));
  spec.dtype = DType::kFloat32;
  EXPECT_EQ(ResolveRunnerOptions({}, spec)->device.cascade, CascadeMode::kOff);
}

TEST(ModelRunnerOptionsTest, RejectsSpecsByField) {
  const auto refused = [](const std::function<void(ModelSpec&)>& spoil) {
    ModelSpec spec = Spec();
    spoil(spec);
    return std::string(ResolveRunnerOptions({}, spec).status().message());
  };
  EXPECT_THAT(refused([](ModelSpec& s) { s.layers.clear(); }), HasSubstr("no attention layer"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.vocab_size = 0; }), HasSubstr("vocab_size"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.max_position = -1; }), HasSubstr("max_position"));
}

TEST(ModelRunnerOptionsTest, MaxEncoderTokensDefaultsToTheModelsLimit) {
  ModelSpec spec = Spec();
  spec.layers[1].kind = AttentionKind::kEncoderDecoder;
  const auto refused = [&](ModelRunnerOptions options) {
    return std::string(ResolveRunnerOptions(options, spec).status().message());
  };
  EXPECT_THAT(refused({}),
              HasSubstr("max_encoder_position of the model's spec must be at least 1"));
  spec.max_encoder_position = 40;
  const auto resolved = ResolveRunnerOptions({}, spec);
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_EQ(resolved->max_encoder_tokens, 40);
  EXPECT_EQ(ResolveRunnerOptions({.max_encoder_tokens = 9}, spec)->max_encoder_tokens, 9);
  EXPECT_THAT(refused({.max_encoder_tokens = 41}), HasSubstr("[1, 40]"));
  EXPECT_THAT(refused({.max_encoder_tokens = 0}), HasSubstr("got 0"));
  EXPECT_EQ(Resolved({}).max_encoder_tokens, 0);
  spec.layers[1].kind = AttentionKind::kDecoder;
  EXPECT_THAT(refused({}), HasSubstr("must be 0, because it has no encoder-decoder layer: got 40"));
}

TEST(ModelRunnerOptionsTest, RejectsEncoderOnlyModels) {
  ModelSpec spec = Spec();
  spec.layers[2].kind = AttentionKind::kEncoderOnly;
  const auto resolved = ResolveRunnerOptions({}, spec);
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(resolved.status().message()), HasSubstr("layer 2"));
}

}  // namespace
}  // namespace reprise
