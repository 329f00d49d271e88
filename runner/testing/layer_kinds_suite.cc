// Each case is a model, and each test drives models in another way. Most results are compared with
// a dense forward pass in float64; cache memory that holds no keys is NaN.

#include "reprise/runner/testing/layer_kinds_suite.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/runner/testing/layered_harness.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LayerKindsSuite);

namespace {

constexpr int kVocab = 61;
constexpr int kWindow = 7;
constexpr int kChunk = 8;

AttentionParams Heads(int num_q_heads, int num_kv_heads, int head_dim_qk, int head_dim_v) {
  return {.num_q_heads = num_q_heads,
          .num_kv_heads = num_kv_heads,
          .head_dim_qk = head_dim_qk,
          .head_dim_v = head_dim_v};
}

LayerSpec Full() { return {.params = Heads(4, 2, 32, 32)}; }

LayerSpec Window() {
  LayerSpec layer = Full();
  layer.params.window_left = kWindow - 1;
  return layer;
}

LayerSpec InChunks(LayerSpec layer) {
  layer.chunk_size = kChunk;
  return layer;
}

LayerSpec Chunked() { return InChunks(Full()); }

LayerSpec Sharing(LayerSpec layer, int source) {
  layer.shares_kv_with = source;
  return layer;
}

LayerSpec OfKind(AttentionKind kind) {
  LayerSpec layer = Full();
  layer.kind = kind;
  return layer;
}

LayerSpec Latent() { return {.params = Heads(3, 1, 48, 32), .v_in_k = true}; }

LayerSpec With(LayerSpec layer, const std::function<void(AttentionParams&)>& set) {
  set(layer.params);
  return layer;
}

struct Case {
  std::string name;
  LayeredModelOptions model;
};

std::vector<Case> Cases() {
  const auto softcapped = [](AttentionParams& p) {
    p.softcap = 2.0f;
    p.scale = 0.3f;
  };
  const AttentionParams wide = Heads(6, 2, 64, 32);
  const AttentionParams narrow = Heads(3, 3, 32, 64);
  return {
      {"windows and full", {.layers = {Window(), Full(), Window()}}},
      {"chunks and full", {.layers = {Chunked(), Chunked(), Full()}}},
      {"windows, chunks, full, sinks and softcaps",
       {.layers = {With(Window(), softcapped), Chunked(), Full(), With(Full(), softcapped)},
        .sink_layers = {0, 1, 3}}},
      {"all windows", {.layers = {Window(), Window()}}},
      {"shared keys",
       {.layers = {Full(), Window(), Sharing(Full(), 0), Sharing(Window(), 1), Chunked(),
                   Sharing(Window(), 0)}}},
      {"other heads and sizes of K and V",
       {.layers = {{.params = wide}, {.params = narrow}, Window()}}},
      {"prompts in two parts",
       {.layers = {Full(), Window(), {.params = wide}},
        .prompts = LayeredModelOptions::Prompts::kInTwoParts}},
      {"latents", {.layers = {Latent(), Latent(), Latent()}}},
      {"latents and windows", {.layers = {Latent(), Window()}}},
      {"latents in chunks", {.layers = {InChunks(Latent()), Latent(), InChunks(Latent())}}},
      {"cross attention",
       {.layers = {OfKind(AttentionKind::kEncoder), OfKind(AttentionKind::kEncoder), Full(),
                   OfKind(AttentionKind::kEncoderDecoder), Window(),
                   OfKind(AttentionKind::kEncoderDecoder)},
        .max_encoder_position = 40}},
  };
}

std::vector<int32_t> RandomText(std::mt19937& rng, int length) {
  std::vector<int32_t> text;
  for (int i = 0; i < length; ++i) text.push_back(static_cast<int32_t>(rng() % kVocab));
  return text;
}

LayeredSequence RandomSequence(std::mt19937& rng, const Case& c, int max_prompt) {
  LayeredSequence sequence = {.text = RandomText(rng, 1 + rng() % max_prompt)};
  if (c.model.max_encoder_position > 0) {
    // 0 to 19 tokens. A sequence without an encoder input attends to no encoder keys.
    sequence.encoder_text = RandomText(rng, rng() % 20);
  }
  return sequence;
}

std::vector<SlotId> FirstSlots(int n) {
  std::vector<SlotId> slots;
  for (int i = 0; i < n; ++i) slots.emplace_back(i);
  return slots;
}

std::unique_ptr<LayeredHarness> Make(c10::Device device, const Case& c,
                                     const ModelRunnerOptions& options) {
  LayeredModelOptions model = c.model;
  model.vocab_size = kVocab;
  model.device = device;
  auto harness = LayeredHarness::Create(options, model);
  EXPECT_TRUE(harness.ok()) << c.name << ": " << harness.status();
  return harness.ok() ? *std::move(harness) : nullptr;
}

#define ASSERT_STEP(expression)                    \
  do {                                             \
    const absl::Status step_status = (expression); \
    ASSERT_TRUE(step_status.ok()) << step_status;  \
  } while (false)

TEST_P(LayerKindsSuite, EveryRowCountIsReplayedAndMatchesTheReference) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    auto harness = Make(GetParam(), c,
                        {.max_num_seqs = 8,
                         .max_num_tokens = 256,
                         .max_seq_len = 64,
                         .cache = {.block_size = 4},
                         .graphs = {.sizes = {1, 2, 4, 8}}});
    ASSERT_NE(harness, nullptr);
    std::mt19937 rng(17);
    int num_decodes = 0;
    for (int n = 8; n >= 1; --n) {
      SCOPED_TRACE(testing::Message() << n << " rows");
      for (const SlotId slot : FirstSlots(n)) harness->Join(slot, RandomSequence(rng, c, 20));
      ASSERT_STEP(harness->Step(FirstSlots(n)));
      harness->ExpectTokensAndLogits();
      for (int step = 0; step < 3; ++step, ++num_decodes) {
        ASSERT_STEP(harness->Step(FirstSlots(n)));
        EXPECT_EQ(harness->decision().kind, GraphDecision::Kind::kReplay);
        harness->ExpectTokensAndLogits();
      }
      for (const SlotId slot : FirstSlots(n)) harness->Leave(slot);
      if (HasFailure()) return;
    }
    EXPECT_GE(harness->runner().graph_report().num_replays(), num_decodes);
  }
}

// Sequences join, leave and grow past windows, chunks and block boundaries. Prompts arrive in
// chunks of any size, together with decodes.
TEST_P(LayerKindsSuite, RandomTrafficMatchesTheReference) {
  const int num_slots = 5;
  for (const Case& c : Cases()) {
    const uint32_t seed = 23;
    SCOPED_TRACE(testing::Message() << c.name << ", seed " << seed);
    std::mt19937 rng(seed);
    auto harness = Make(GetParam(), c,
                        {.max_num_seqs = num_slots,
                         .max_num_tokens = 64,
                         .max_seq_len = 60,
                         .cache = {.block_size = 3},
                         .graphs = {.sizes = {1, 2, 4}}});
    ASSERT_NE(harness, nullptr);
    std::vector<bool> live(num_slots, false);
    int num_decode_steps = 0;
    for (int step = 0; step < 250; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      std::vector<SlotId> slots;
      for (const SlotId slot : FirstSlots(num_slots)) {
        const int id = slot.value();
        if (live[id] && (harness->sequence(slot).text.size() >= 60 || rng() % 40 == 0)) {
          harness->Leave(slot);
          live[id] = false;
        }
        if (!live[id] && rng() % 6 == 0) {
          harness->Join(slot, RandomSequence(rng, c, 30));
          live[id] = true;
          slots.push_back(slot);
        } else if (live[id] && rng() % 5 != 0) {
          slots.push_back(slot);
        }
      }
      std::shuffle(slots.begin(), slots.end(), rng);
      const int max_chunk = 1 + static_cast<int>(rng() % 12);
      const bool decodes = !slots.empty() && slots.size() <= 4 &&
                           std::all_of(slots.begin(), slots.end(),
                                       [&](SlotId slot) { return harness->decodes(slot); });
      ASSERT_STEP(harness->Step(slots, max_chunk));
      if (decodes) {
        EXPECT_EQ(harness->decision().kind, GraphDecision::Kind::kReplay);
        ++num_decode_steps;
      }
      if (step % 4 == 0) harness->ExpectTokensAndLogits();
      if (HasFailure()) return;
    }
    EXPECT_GE(num_decode_steps, 20);
    EXPECT_GE(harness->runner().graph_report().num_replays(), num_decode_steps);
  }
}

TEST_P(LayerKindsSuite, GraphsMatchEagerStepsBitwise) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    ModelRunnerOptions options = {
        .max_num_seqs = 4, .max_num_tokens = 64, .max_seq_len = 64, .cache = {.block_size = 5}};
    auto on = Make(GetParam(), c, options);
    options.graphs.mode = GraphSetOptions::Mode::kOff;
    auto off = Make(GetParam(), c, options);
    ASSERT_TRUE(on != nullptr && off != nullptr);
    std::mt19937 rng(8);
    for (const SlotId slot : FirstSlots(3)) {
      const LayeredSequence sequence = RandomSequence(rng, c, 12);
      on->Join(slot, sequence);
      off->Join(slot, sequence);
    }
    for (int step = 0; step < 12; ++step) {
      const std::vector<SlotId> slots = FirstSlots(step == 0 ? 3 : 1 + step % 3);
      ASSERT_STEP(on->Step(slots));
      ASSERT_STEP(off->Step(slots));
      const int64_t n = static_cast<int64_t>(slots.size());
      ASSERT_TRUE(at::equal(on->logits().narrow(0, 0, n), off->logits().narrow(0, 0, n)))
          << "step " << step;
      if (step == 0) continue;
      EXPECT_EQ(on->decision().kind, GraphDecision::Kind::kReplay);
      EXPECT_EQ(off->decision().reason, EagerReason::kDisabled);
    }
  }
}

// With graphs, chunks of prompts and decodes in one step are always replayed, for all kinds of
// layers.
TEST_P(LayerKindsSuite, MixedReplaysMatchEagerStepsBitwise) {
  for (const Case& c : Cases()) {
    const uint32_t seed = 31;
    SCOPED_TRACE(testing::Message() << c.name << ", seed " << seed);
    std::vector<std::unique_ptr<LayeredHarness>> harnesses;
    // Captured completely, captured except for attention, and not captured.
    for (const auto& [mode, attention_in_graphs] : {std::pair(GraphSetOptions::Mode::kLazy, true),
                                                    std::pair(GraphSetOptions::Mode::kLazy, false),
                                                    std::pair(GraphSetOptions::Mode::kOff, true)}) {
      harnesses.push_back(
          Make(GetParam(), c,
               {.max_num_seqs = 5,
                .max_num_tokens = 64,
                .max_seq_len = 60,
                .cache = {.block_size = 3},
                .graphs = {.mode = mode,
                           .sizes = {1, 2},
                           .mixed = MixedGraphs::kOn,
                           .mixed_tokens = {7, 16, 64}},
                .debug = {.attention = attention_in_graphs ? AttentionLaunch::kInGraphs
                                                           : AttentionLaunch::kBetweenGraphs,
                          .mixed_graph_sizes = {2, 5}}}));
      ASSERT_NE(harnesses.back(), nullptr);
    }
    LayeredHarness& on = *harnesses[0];
    LayeredHarness& in_pieces = *harnesses[1];
    LayeredHarness& off = *harnesses[2];
    std::mt19937 rng(seed);
    std::vector<bool> live(5, false);
    int num_mixed = 0;
    for (int step = 0; step < 120; ++step) {
      SCOPED_TRACE(testing::Message() << "step " << step);
      std::vector<SlotId> slots;
      for (const SlotId slot : FirstSlots(5)) {
        const int id = slot.value();
        if (live[id] && (on.sequence(slot).text.size() >= 60 || rng() % 30 == 0)) {
          for (const auto& harness : harnesses) harness->Leave(slot);
          live[id] = false;
        }
        if (!live[id] && rng() % 4 == 0) {
          const LayeredSequence sequence = RandomSequence(rng, c, 30);
          for (const auto& harness : harnesses) harness->Join(slot, sequence);
          live[id] = true;
          slots.push_back(slot);
        } else if (live[id] && rng() % 5 != 0) {
          slots.push_back(slot);
        }
      }
      if (slots.empty()) continue;
      std::shuffle(slots.begin(), slots.end(), rng);
      const int max_chunk = 1 + static_cast<int>(rng() % 12);
      for (const auto& harness : harnesses) ASSERT_STEP(harness->Step(slots, max_chunk));
      EXPECT_EQ(on.decision().kind, GraphDecision::Kind::kReplay) << on.decision();
      EXPECT_EQ(in_pieces.decision().kind, GraphDecision::Kind::kReplay);
      EXPECT_EQ(on.decision().key, off.decision().key);
      const int64_t n = static_cast<int64_t>(slots.size());
      ASSERT_TRUE(at::equal(on.logits().narrow(0, 0, n), off.logits().narrow(0, 0, n)));
      ASSERT_TRUE(at::equal(in_pieces.logits().narrow(0, 0, n), off.logits().narrow(0, 0, n)));
      if (on.decision().key.max_query_len > 1) ++num_mixed;
      if (step % 4 == 0) on.ExpectTokensAndLogits();
      if (HasFailure()) return;
    }
    EXPECT_GE(num_mixed, 40);
    EXPECT_EQ(on.runner().graph_report().num_eager_steps(), 0);
  }
}

// At 16 times its chunk, or more than 16 times its window, a sequence holds only the blocks of one
// window or chunk in such groups, and its results still match a dense forward pass.
TEST_P(LayerKindsSuite, BlocksStayBoundedFarBeyondWindowAndChunk) {
  for (const Case& c : {Case{"window", {.layers = {Window(), Full()}}},
                        Case{"window alone", {.layers = {Window(), Window()}}},
                        Case{"chunk", {.layers = {Chunked(), Full()}}},
                        Case{"chunk and window", {.layers = {Chunked(), Window()}}}}) {
    SCOPED_TRACE(c.name);
    const int block_size = 2;
    const int length = 16 * kChunk;
    auto harness = Make(GetParam(), c,
                        {.max_num_seqs = 2,
                         .max_num_tokens = 16,
                         .max_seq_len = length,
                         .cache = {.block_size = block_size}});
    ASSERT_NE(harness, nullptr);
    std::mt19937 rng(5);
    for (const SlotId slot : FirstSlots(2)) harness->Join(slot, {.text = RandomText(rng, 30)});
    std::vector<int> most(harness->blocks().num_groups());
    while (static_cast<int>(harness->sequence(SlotId(0)).text.size()) < length) {
      ASSERT_STEP(harness->Step(FirstSlots(2), /*max_chunk=*/4));
      if (harness->sequence(SlotId(0)).text.size() % 16 == 0) harness->ExpectTokensAndLogits();
      for (int group = 0; group < harness->blocks().num_groups(); ++group) {
        most[group] = std::max(most[group], harness->num_blocks(SlotId(0), group));
      }
    }
    harness->ExpectTokensAndLogits();
    EXPECT_EQ(harness->decision().kind, GraphDecision::Kind::kReplay);
    for (int group = 0; group < harness->blocks().num_groups(); ++group) {
      const KvGroupSpec& spec = harness->runner().shape().groups[group];
      if (spec.span == 0) continue;
      // The span, a step of 4 tokens, and a block that also holds tokens that have left the span.
      EXPECT_LE(most[group], (spec.span + 4) / block_size + 1) << "group " << group;
    }
  }
}

TEST_P(LayerKindsSuite, RowDoesNotDependOnItsBatchInInvariantMode) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const ModelRunnerOptions options = {.max_num_seqs = 6,
                                        .max_num_tokens = 256,
                                        .max_seq_len = 200,
                                        .cache = {.block_size = 4},
                                        .graphs = {.sizes = {1, 6}},
                                        .device = {.batch_invariance = BatchInvariance::kOn}};
    auto alone = Make(GetParam(), c, options);
    auto together = Make(GetParam(), c, options);
    ASSERT_TRUE(alone != nullptr && together != nullptr);
    std::mt19937 rng(12);
    LayeredSequence sequence = RandomSequence(rng, c, 10);
    sequence.text = RandomText(rng, 70);
    alone->Join(SlotId(0), sequence);
    for (const SlotId slot : FirstSlots(6)) {
      together->Join(slot, slot.value() == 3 ? sequence : RandomSequence(rng, c, 30));
    }
    for (int step = 0; step < 8; ++step) {
      ASSERT_STEP(alone->Step({SlotId(0)}));
      ASSERT_STEP(together->Step(FirstSlots(6)));
      ASSERT_TRUE(at::equal(alone->logits()[0], together->logits()[3])) << "step " << step;
      if (step == 0) continue;  // prompts
      ASSERT_EQ(alone->decision().kind, GraphDecision::Kind::kReplay);
      ASSERT_EQ(together->decision().kind, GraphDecision::Kind::kReplay);
    }
    EXPECT_EQ(alone->sequence(SlotId(0)).text, together->sequence(SlotId(3)).text);
  }
}

TEST_P(LayerKindsSuite, RejectsCallsThatALayerDoesNotSupport) {
  // Makes calls that the layers' kinds do not support.
  class WrongCalls : public LayeredModel {
   public:
    using LayeredModel::LayeredModel;
    absl::StatusOr<at::Tensor> Forward(const Step& step) override {
      ++num_calls;
      const at::Tensor& x = step.logits();
      for (const auto& status : {step.Attend(0, x, x).status(), step.Attend(1, x, x, x).status(),
                                 step.Attend(2, x, x, x).status(), step.Attend(3, x).status(),
                                 step.Attend(4, x).status(), step.Attend(-1, x).status()}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      }
      EXPECT_EQ(step.AttendWithin(0, x, x, x).status().code(),
                absl::StatusCode::kFailedPrecondition);
      EXPECT_EQ(step.AttendBefore(0, x).status().code(), absl::StatusCode::kFailedPrecondition);
      return step.logits();
    }
    int num_calls = 0;
  };
  WrongCalls model(
      {.layers = {Full(), Sharing(Full(), 0), Latent(), OfKind(AttentionKind::kEncoder),
                  OfKind(AttentionKind::kEncoderDecoder)},
       .max_encoder_position = 4,
       .device = GetParam()});
  const auto runner = ModelRunner::Create(
      &model,
      {.max_num_seqs = 1, .max_num_tokens = 4, .graphs = {.mode = GraphSetOptions::Mode::kEager}});
  EXPECT_TRUE(runner.ok()) << runner.status();
  EXPECT_GT(model.num_calls, 0);
}

TEST_P(LayerKindsSuite, RejectsEncoderTokensIfTheModelHasNoEncoder) {
  auto harness = Make(GetParam(), {"full", {.layers = {Full()}}}, {.max_num_seqs = 1});
  ASSERT_NE(harness, nullptr);
  const SlotJoin join[] = {
      {.slot = SlotId(0), .seq_len = 0, .prompt_len = 1, .num_encoder_tokens = 1}};
  const auto refused = harness->runner().Launch({.joins = join});
  EXPECT_THAT(std::string(refused.status().message()),
              testing::HasSubstr("num_encoder_tokens of slot 0 must be in [0, 0], got 1"));
}

}  // namespace
}  // namespace reprise
