#include "reprise/runner/testing/replay_check_suite.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/testing/layered_harness.h"
#include "reprise/runner/testing/runner_harness.h"

namespace reprise {

// A build without CUDA instantiates no test for a GPU.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ReplayCheckSuite);

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = GraphDecision::Kind;

constexpr int kVocab = 31;
constexpr int kHeadDim = 16;
constexpr int kLayers = 3;

// Adds the value of a host variable, which every forward pass changes, to a tensor. A graph freezes
// the value of its capture. On the CPU, where a replay calls Forward() again, the replay uses the
// next value.
class HostValueModel : public Model {
 public:
  enum class Where { kNowhere, kQueries, kStream, kLogits, kNames };

  explicit HostValueModel(c10::Device device) {
    spec_ = {.layers = std::vector<LayerSpec>(kLayers, {.params = {.num_q_heads = 2,
                                                                   .num_kv_heads = 2,
                                                                   .head_dim_qk = kHeadDim,
                                                                   .head_dim_v = kHeadDim}}),
             .vocab_size = kVocab,
             .max_position = 64,
             .device = device};
    embedding_ = at::randn({kVocab, 2 * kHeadDim}).to(device);
  }

  const ModelSpec& spec() const override { return spec_; }

  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    ++num_forwards_;
    at::Tensor x = embedding_.index_select(0, step.token_ids());
    for (int layer = 0; layer < kLayers; ++layer) {
      const at::Tensor heads = x.view({-1, 2, kHeadDim});
      const at::Tensor q = heads + ValueAt(Where::kQueries, layer);
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor out, step.Attend(layer, q, heads, heads));
      x = x + out.reshape({-1, 2 * kHeadDim}) + ValueAt(Where::kStream, layer);
      step.Watch(ValueAt(Where::kNames, layer) > 2 ? "another" : "stream", x);
    }
    const at::Tensor last = x.index_select(0, step.logits_indices());
    return at::Tensor(last.matmul(embedding_.t()) + ValueAt(Where::kLogits, 1));
  }

  Where where = Where::kNowhere;  // applies to the second layer

 private:
  double ValueAt(Where place, int layer) const {
    return place == where && layer == 1 ? num_forwards_ : 0;
  }

  ModelSpec spec_;
  at::Tensor embedding_;
  int num_forwards_ = 0;
};

class Driver {
 public:
  Driver(c10::Device device, HostValueModel::Where where, ReplayCheck check) : model_(device) {
    model_.where = where;
    auto runner = ModelRunner::Create(&model_, {.max_num_seqs = 2,
                                                .max_num_tokens = 16,
                                                .max_steps_in_flight = 1,
                                                .cache = {.block_size = 4, .size = NumBlocks{16}},
                                                .graphs = {.mixed = MixedGraphs::kOn},
                                                .debug = {.replay_check = check}});
    EXPECT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
  }

  // Runs a prompt of four tokens in `slot`.
  absl::Status Prompt(int slot) {
    const SlotJoin join[] = {JoinOf(SlotId(slot), {}, 4)};
    const BlockTableUpdate updates[] = {
        {.slot = SlotId(slot), .column = 0, .block = BlockId(1 + 2 * slot)},
        {.slot = SlotId(slot), .column = 1, .block = BlockId(2 + 2 * slot)}};
    const std::vector<int32_t> tokens = {3, 1, 4, 1};
    const ScheduledRow rows[] = {{.slot = SlotId(slot), .tokens = tokens}};
    return runner_->Step({.joins = join, .updates = updates, .rows = rows}).status();
  }
  absl::Status Decode(int slot) {
    const ScheduledRow rows[] = {{.slot = SlotId(slot)}};
    return runner_->Step({.rows = rows}).status();
  }
  absl::Status Leave(int slot) {
    const SlotId leaves[] = {SlotId(slot)};
    return runner_->Step({.leaves = leaves}).status();
  }

  HostValueModel& model() { return model_; }
  ModelRunner& runner() { return *runner_; }

 private:
  HostValueModel model_;
  std::unique_ptr<ModelRunner> runner_;
};

TEST_P(ReplayCheckSuite, NamesTheFirstTensorThatAFrozenHostValueChanges) {
  struct Case {
    HostValueModel::Where where;
    const char* name;
  };
  for (const Case& c :
       std::vector<Case>{{HostValueModel::Where::kQueries, "'layer 1 q' at [0, 0, 0] "},
                         {HostValueModel::Where::kStream, "'stream' at [0, 0] "},
                         {HostValueModel::Where::kLogits, "'logits' at [0, 0] "}}) {
    SCOPED_TRACE(c.name);
    Driver driver(GetParam(), c.where, ReplayCheck::kEveryReplay);
    const absl::Status prompt = driver.Prompt(0);  // a mixed step
    EXPECT_EQ(prompt.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(
        std::string(prompt.message()),
        AllOf(HasSubstr("the replay of 2 seqs x 16 (16 tokens), tokens is not the step that "
                        "it was captured from: expected "),
              HasSubstr(c.name)));
    const absl::Status decode = driver.Decode(0);
    EXPECT_EQ(decode.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(decode.message()),
                AllOf(HasSubstr("the replay of 1 seqs x 1, tokens"), HasSubstr(c.name)));
  }
}

TEST_P(ReplayCheckSuite, NamesTensorsThatOnlyOneRunWatches) {
  Driver driver(GetParam(), HostValueModel::Where::kNowhere, ReplayCheck::kEveryReplay);
  ASSERT_EQ(driver.Prompt(0), absl::OkStatus());
  ASSERT_EQ(driver.Decode(0), absl::OkStatus());
  // From here on, the tensor has another name. On the CPU the replay itself detects this; on a GPU
  // the comparison does.
  driver.model().where = HostValueModel::Where::kNames;
  const absl::Status status = driver.Decode(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("'another'"), HasSubstr("'stream'")));
}

TEST_P(ReplayCheckSuite, FailedCheckFailsOnlyItsStep) {
  Driver driver(GetParam(), HostValueModel::Where::kNowhere, ReplayCheck::kEveryReplay);
  ASSERT_EQ(driver.Prompt(0), absl::OkStatus());
  ASSERT_EQ(driver.Prompt(1), absl::OkStatus());
  driver.model().where = HostValueModel::Where::kLogits;
  EXPECT_EQ(driver.Decode(0).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(driver.runner().status(), absl::OkStatus());
  driver.model().where = HostValueModel::Where::kNowhere;
  EXPECT_EQ(driver.Leave(0), absl::OkStatus());
  EXPECT_EQ(driver.Decode(1), absl::OkStatus());
  EXPECT_EQ(driver.Prompt(0), absl::OkStatus());
}

TEST_P(ReplayCheckSuite, DoesNothingIfSwitchedOff) {
  Driver driver(GetParam(), HostValueModel::Where::kStream, ReplayCheck::kOff);
  EXPECT_EQ(driver.Prompt(0), absl::OkStatus());
  EXPECT_EQ(driver.Decode(0), absl::OkStatus());
  EXPECT_EQ(driver.runner().graph_report().num_replays(), 2);
}

std::vector<int32_t> RandomText(std::mt19937& rng, int length) {
  std::vector<int32_t> text;
  for (int i = 0; i < length; ++i) text.push_back(static_cast<int32_t>(rng() % kVocab));
  return text;
}

// Covers windows, chunks, MLA, shared keys and an encoder; prompts, chunks of prompts, and decodes.
TEST_P(ReplayCheckSuite, FindsNoDifferenceInRandomTrafficWithoutHostValues) {
  const AttentionParams heads = {
      .num_q_heads = 4, .num_kv_heads = 2, .head_dim_qk = 32, .head_dim_v = 32};
  AttentionParams window = heads;
  window.window_left = 6;
  const AttentionParams latent = {
      .num_q_heads = 3, .num_kv_heads = 1, .head_dim_qk = 48, .head_dim_v = 32};
  const auto of_kind = [&](AttentionKind kind) { return LayerSpec{.params = heads, .kind = kind}; };
  const std::vector<LayeredModelOptions> models = {
      {.layers = {{.params = heads}, {.params = window}, {.params = heads, .chunk_size = 8}}},
      {.layers = {{.params = heads}, {.params = window}},
       .prompts = LayeredModelOptions::Prompts::kInTwoParts},
      {.layers = {{.params = latent, .v_in_k = true},
                  {.params = heads},
                  {.params = heads, .shares_kv_with = 1}}},
      {.layers = {of_kind(AttentionKind::kEncoder),
                  {.params = heads},
                  of_kind(AttentionKind::kEncoderDecoder)},
       .max_encoder_position = 40}};
  for (size_t m = 0; m < models.size(); ++m) {
    SCOPED_TRACE(testing::Message() << "model " << m);
    LayeredModelOptions model = models[m];
    model.vocab_size = kVocab;
    model.device = GetParam();
    auto created = LayeredHarness::Create({.max_num_seqs = 4,
                                           .max_num_tokens = 64,
                                           .max_seq_len = 60,
                                           .cache = {.block_size = 3},
                                           .graphs = {.mode = GraphSetOptions::Mode::kLazy,
                                                      .sizes = {1, 2, 4},
                                                      .mixed = MixedGraphs::kOn,
                                                      .mixed_tokens = {8, 64}},
                                           .debug = {.replay_check = ReplayCheck::kEveryReplay}},
                                          model);
    ASSERT_TRUE(created.ok()) << created.status();
    LayeredHarness& harness = **created;
    std::mt19937 rng(m);
    int num_replays = 0;
    for (int round = 0; round < 3; ++round) {
      for (int slot = 0; slot < 4; ++slot) {
        LayeredSequence sequence = {.text = RandomText(rng, 1 + rng() % 20)};
        if (model.max_encoder_position > 0) sequence.encoder_text = RandomText(rng, rng() % 20);
        harness.Join(SlotId(slot), sequence);
      }
      for (int step = 0; step < 15; ++step) {
        std::vector<SlotId> slots;
        for (int slot = 0; slot < 4; ++slot) {
          if (step == 0 || rng() % 3 != 0) slots.emplace_back(slot);
        }
        if (slots.empty()) continue;
        const absl::Status status = harness.Step(slots, 1 + static_cast<int>(rng() % 12));
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(harness.decision().kind, Kind::kReplay) << harness.decision();
        ++num_replays;
        harness.ExpectTokensAndLogits();
      }
      for (int slot = 0; slot < 4; ++slot) harness.Leave(SlotId(slot));
    }
    EXPECT_EQ(harness.runner().graph_report().num_replays(), num_replays);
  }
}

TEST_P(ReplayCheckSuite, CheckedGraphMatchesUncheckedGraphBitwise) {
  std::vector<std::vector<int32_t>> texts;
  for (const ReplayCheck check : {ReplayCheck::kOff, ReplayCheck::kEveryReplay}) {
    auto harness = RunnerHarness::Create(
        {.max_num_seqs = 3,
         .max_num_tokens = 32,
         .max_seq_len = 64,
         .graphs = {.mode = GraphSetOptions::Mode::kEager, .mixed = MixedGraphs::kOn},
         .debug = {.replay_check = check}},
        {.device = GetParam()});
    ASSERT_TRUE(harness.ok()) << harness.status();
    for (int slot = 0; slot < 3; ++slot) (*harness)->Join(SlotId(slot), {slot, 5, 6, 7});
    for (int step = 0; step < 20; ++step) {
      const absl::Status status = (*harness)->Step({SlotId(2), SlotId(0), SlotId(1)});
      ASSERT_TRUE(status.ok()) << status;
    }
    (*harness)->ExpectTokensAndLogits();
    texts.push_back((*harness)->text(SlotId(1)));
  }
  EXPECT_EQ(texts[0], texts[1]);
}

}  // namespace
}  // namespace reprise
