#include "runner/model_runner_options.h"

#include <functional>
#include <string>

#include "distributed/collectives.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runner/speculation/drafter.h"

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
  options.block_size = 4;
  auto resolved = ResolveRunnerOptions(options, Spec());
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return *resolved;
}

TEST(ModelRunnerOptionsTest, DefaultsFollowTheModelAndTheDevice) {
  const ModelRunnerOptions on_cpu = Resolved({});
  EXPECT_EQ(on_cpu.max_seq_len, 64);
  EXPECT_EQ(on_cpu.kv_dtype, DType::kBFloat16);
  EXPECT_EQ(on_cpu.graphs, GraphSetOptions::Mode::kLazy);
  EXPECT_EQ(on_cpu.max_steps_in_flight, 1);

  ModelSpec spec = Spec();
  spec.device = c10::Device(c10::kCUDA, 0);
  const auto on_gpu = ResolveRunnerOptions({}, spec);
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_EQ(on_gpu->graphs, GraphSetOptions::Mode::kEager);
  EXPECT_EQ(on_gpu->max_steps_in_flight, 2);
}

class NoDrafter final : public Drafter {
 public:
  absl::Status Propose(const DraftStep&) override { return absl::OkStatus(); }
};

TEST(ModelRunnerOptionsTest, FewDraftsHaveGraphsOfTheirOwn) {
  const auto sizes = [](const SpeculationOptions& speculation) {
    return Resolved({.speculation = speculation}).speculation.graph_num_drafts;
  };
  using Proposer = SpeculationOptions::Proposer;
  EXPECT_THAT(sizes({}), IsEmpty());
  EXPECT_THAT(sizes({.max_drafts = 1}), ElementsAre(1));
  EXPECT_THAT(sizes({.max_drafts = 3, .proposer = Proposer::kNgram}), ElementsAre(1, 2, 3));
  EXPECT_THAT(sizes({.max_drafts = 4, .proposer = Proposer::kNgram}), ElementsAre(1, 2, 4));
  EXPECT_THAT(sizes({.max_drafts = 16}), ElementsAre(1, 2, 4, 8, 16));
  EXPECT_THAT(sizes({.max_drafts = 4, .graph_num_drafts = {3, 4}}), ElementsAre(3, 4));
  // Of trees whole levels; of given ones, whose shape is not known, the largest.
  EXPECT_THAT(sizes({.max_drafts = 30, .shape = DraftShape::kTree}), ElementsAre(30));
  NoDrafter drafter;
  EXPECT_THAT(sizes({.max_drafts = 8,
                     .shape = DraftShape::kTree,
                     .tree = {0, 0, 1, 2, 3, 4, 5, 6},
                     .proposer = Proposer::kCustom,
                     .drafter = &drafter}),
              ElementsAre(2, 4, 8));
}

// Rank 1 of some, two unless given, which is never asked for more.
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

TEST(ModelRunnerOptionsTest, BlocksOfDividedKeysAreThoseOfAllRanks) {
  SomeRanks ranks;
  EXPECT_EQ(Resolved({.collectives = &ranks}).block_size, 4);
  const ModelRunnerOptions divided =
      Resolved({.collectives = &ranks, .divides_context = true, .context_interleave = 2});
  EXPECT_EQ(divided.block_size, 8);
  EXPECT_EQ(divided.cascade, CascadeMode::kOff);
  const ModelRunnerOptions alone = Resolved({.divides_context = true});
  EXPECT_EQ(alone.block_size, 4);
  EXPECT_FALSE(alone.divides_context);
}

TEST(ModelRunnerOptionsTest, OfAGridSomeRanksDivideKeys) {
  SomeRanks ranks(6);
  const auto resolved = [&](bool divides_context, int context_ranks) {
    return Resolved({.collectives = &ranks,
                     .divides_context = divides_context,
                     .context_ranks = context_ranks});
  };
  EXPECT_EQ(resolved(true, 0).context_ranks, 6);
  EXPECT_EQ(resolved(true, 0).block_size, 24);
  EXPECT_EQ(resolved(true, 3).context_ranks, 3);
  EXPECT_EQ(resolved(true, 3).block_size, 12);
  EXPECT_FALSE(resolved(true, 1).divides_context);
  EXPECT_EQ(resolved(true, 1).block_size, 4);
  EXPECT_EQ(resolved(false, 0).context_ranks, 1);
  const auto refused = [&](bool divides_context, int context_ranks) {
    const absl::Status status = ResolveRunnerOptions({.collectives = &ranks,
                                                      .divides_context = divides_context,
                                                      .context_ranks = context_ranks},
                                                     Spec())
                                    .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  for (const int context_ranks : {-1, 4, 12}) {
    EXPECT_THAT(refused(true, context_ranks),
                HasSubstr("context_ranks must divide the number of ranks, 6: got"));
  }
  EXPECT_THAT(refused(false, 2), HasSubstr("context_ranks is of divides_context, which is off"));
}

TEST(ModelRunnerOptionsTest, WhatNeedsAllKeysIsNotDivided) {
  SomeRanks ranks;
  const auto refused = [&](const std::function<void(ModelRunnerOptions&)>& change,
                           const std::function<void(ModelSpec&)>& change_spec = nullptr) {
    ModelRunnerOptions options = {.collectives = &ranks, .divides_context = true};
    ModelSpec spec = Spec();
    if (change != nullptr) change(options);
    if (change_spec != nullptr) change_spec(spec);
    const absl::Status status = ResolveRunnerOptions(options, spec).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(refused([](auto& options) { options.cascade = CascadeMode::kAuto; }),
              HasSubstr("divides_context excludes cascade"));
  EXPECT_THAT(refused([](auto& options) { options.batch_invariance = BatchInvariance::kOn; }),
              HasSubstr("excludes batch_invariance"));
  EXPECT_THAT(refused([](auto& options) {
                options.kv_dtype = DType::kFp8E4M3;
                options.kv_calibration = KvCalibration::kFirstStep;
              }),
              HasSubstr("excludes kv_calibration"));
  EXPECT_THAT(refused([](auto& options) { options.context_interleave = 0; }),
              HasSubstr("context_interleave"));
  EXPECT_THAT(refused([](auto& options) { options.context_interleave = 3; }),
              HasSubstr("block_size must be a multiple of context_interleave (3), got 16"));
  EXPECT_THAT(refused([](auto& options) { options.block_size = 1 << 30; }),
              HasSubstr("block_size is too large"));
  EXPECT_THAT(refused(nullptr, [](auto& spec) { spec.layers[1].chunk_size = 8; }),
              HasSubstr("layer 1 of the model's spec has chunks"));
  static constexpr float kSinks[4] = {};
  EXPECT_THAT(refused([](auto& options) { options.context_interleave = 4; },
                      [](auto& spec) {
                        spec.layers[2].params.sinks = kSinks;
                        spec.layers[2].params.window_left = 6;
                      }),
              HasSubstr("the window of layer 2, which has sinks, must hold a run of each rank: "
                        "expected at least 8 tokens, got 7"));
}

TEST(ModelRunnerOptionsTest, MixedGraphsAreForGpusOrOnRequest) {
  EXPECT_EQ(Resolved({}).mixed_graphs, MixedGraphs::kOff);
  EXPECT_TRUE(Resolved({.mixed_graph_tokens = {32}}).mixed_graph_tokens.empty());
  const ModelRunnerOptions on =
      Resolved({.max_num_seqs = 20, .max_num_tokens = 130, .mixed_graphs = MixedGraphs::kOn});
  EXPECT_THAT(on.mixed_graph_tokens, testing::ElementsAre(64, 128, 130));
  EXPECT_THAT(on.mixed_graph_sizes, testing::ElementsAre(16, 20));
  const ModelRunnerOptions given = Resolved({.mixed_graphs = MixedGraphs::kOn,
                                             .mixed_graph_tokens = {32, 512},
                                             .mixed_graph_sizes = {5}});
  EXPECT_THAT(given.mixed_graph_tokens, testing::ElementsAre(32, 512));
  EXPECT_THAT(given.mixed_graph_sizes, testing::ElementsAre(5));

  ModelSpec spec = Spec();
  spec.device = c10::Device(c10::kCUDA, 0);
  const auto on_gpu = ResolveRunnerOptions({}, spec);
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  EXPECT_EQ(on_gpu->mixed_graphs, MixedGraphs::kOn);
  EXPECT_EQ(on_gpu->mixed_graph_tokens.back(), 512);
  EXPECT_THAT(on_gpu->mixed_graph_sizes, testing::ElementsAre(8));
}

TEST(ModelRunnerOptionsTest, RefusesOptionsByNameAndValue) {
  const auto refused = [](ModelRunnerOptions options) {
    const auto resolved = ResolveRunnerOptions(options, Spec());
    EXPECT_EQ(resolved.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(resolved.status().message());
  };
  EXPECT_THAT(refused({.max_num_seqs = 0}), HasSubstr("max_num_seqs"));
  EXPECT_THAT(refused({.max_num_seqs = 8, .max_num_tokens = 7}),
              HasSubstr("max_num_tokens is too small: expected at least 8, got 7"));
  EXPECT_THAT(refused({.mixed_graphs = MixedGraphs::kOn, .mixed_graph_tokens = {64, 513}}),
              HasSubstr("mixed_graph_tokens must not pass max_num_tokens: expected at most 512, "
                        "got 513"));
  EXPECT_THAT(refused({.max_seq_len = 65}), HasSubstr("expected at most 64, got 65"));
  EXPECT_THAT(refused({.max_seq_len = 0}), HasSubstr("max_seq_len"));
  EXPECT_THAT(refused({.block_size = 0}), HasSubstr("block_size"));
  EXPECT_THAT(refused({.num_blocks = 1}), HasSubstr("num_blocks"));
  EXPECT_THAT(refused({.num_blocks = 4, .kv_memory_bytes = 9}), HasSubstr("exclude each other"));
  EXPECT_THAT(refused({.num_swap_blocks = -1}), HasSubstr("num_swap_blocks is too small"));
  EXPECT_THAT(refused({.num_swap_blocks = 1}), HasSubstr("or at least 2"));
  EXPECT_THAT(refused({.swap_memory_bytes = -1}), HasSubstr("swap_memory_bytes is too small"));
  EXPECT_THAT(refused({.num_swap_blocks = 4, .swap_memory_bytes = 9}),
              HasSubstr("num_swap_blocks and swap_memory_bytes exclude each other"));
  EXPECT_THAT(refused({.max_steps_in_flight = 0}), HasSubstr("max_steps_in_flight"));
  EXPECT_THAT(refused({.max_num_tokens = 99, .max_earlier_logits = 100}),
              HasSubstr("max_earlier_logits: expected 0 to 99, got 100"));
  EXPECT_THAT(refused({.max_earlier_logits = -1}), HasSubstr("max_earlier_logits"));
}

TEST(ModelRunnerOptionsTest, PrefixesAreReadOnceWhereThatIsMeasuredAndAllowed) {
  EXPECT_EQ(Resolved({}).cascade, CascadeMode::kOff);
  EXPECT_EQ(Resolved({.cascade = CascadeMode::kAuto}).cascade, CascadeMode::kAuto);
  ModelSpec spec = Spec();
  spec.device = c10::Device(c10::kCUDA, 0);
  EXPECT_EQ(ResolveRunnerOptions({}, spec)->cascade, CascadeMode::kAuto);
  ModelRunnerOptions options = {.batch_invariance = BatchInvariance::kOn};
  EXPECT_EQ(ResolveRunnerOptions(options, spec)->cascade, CascadeMode::kOff);
  options.cascade = CascadeMode::kAuto;
  const absl::Status refused = ResolveRunnerOptions(options, spec).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("cascade must be off with batch_invariance"));
  spec.dtype = DType::kFloat32;
  EXPECT_EQ(ResolveRunnerOptions({}, spec)->cascade, CascadeMode::kOff);
}

TEST(ModelRunnerOptionsTest, RefusesSpecsByField) {
  const auto refused = [](const std::function<void(ModelSpec&)>& spoil) {
    ModelSpec spec = Spec();
    spoil(spec);
    return std::string(ResolveRunnerOptions({}, spec).status().message());
  };
  EXPECT_THAT(refused([](ModelSpec& s) { s.layers.clear(); }), HasSubstr("no attention layer"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.vocab_size = 0; }), HasSubstr("vocab_size"));
  EXPECT_THAT(refused([](ModelSpec& s) { s.max_position = -1; }), HasSubstr("max_position"));
}

TEST(ModelRunnerOptionsTest, TheEncodersLengthComesFromTheModelThatHasOne) {
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
  EXPECT_THAT(refused({}), HasSubstr("must be 0, for it has no encoder-decoder layer: got 40"));
}

TEST(ModelRunnerOptionsTest, EncoderOnlyModelsAreRefused) {
  ModelSpec spec = Spec();
  spec.layers[2].kind = AttentionKind::kEncoderOnly;
  const auto resolved = ResolveRunnerOptions({}, spec);
  EXPECT_EQ(resolved.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(resolved.status().message()), HasSubstr("layer 2"));
}

}  // namespace
}  // namespace reprise
