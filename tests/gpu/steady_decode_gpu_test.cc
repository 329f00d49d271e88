// The CUDA calls of a steady decode step, counted by CUPTI: one refill, one graph, one sampling; no
// wait for the device before the next launch, no copy to the host, no allocation.

#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "reprise/base/status_macros.h"
#include "reprise/base/testing/allocation_counter.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/speculation/draft_heads.h"
#include "reprise/runner/speculation/drafter.h"
#include "reprise/runner/step.h"
#include "reprise/runner/trace/step_trace.h"
#include "tests/benchmarks/device/device_trace.h"
#include "tests/benchmarks/device/step_trace.h"

namespace reprise {
namespace {

constexpr int kNumRows = 5;  // in a graph of 8
constexpr int kNumSteps = 20;

// A model that returns hidden states: the same ones at each token, so that they cost no kernel.
class WithStates : public Model {
 public:
  static constexpr int kHiddenDim = 64;

  WithStates(Model* model, int max_num_tokens)
      : model_(model),
        spec_(model->spec()),
        states_(at::ones({max_num_tokens, kHiddenDim},
                         at::TensorOptions(at::kCUDA).dtype(at::kBFloat16))) {
    spec_.hidden_dim = kHiddenDim;
  }
  const ModelSpec& spec() const override { return spec_; }
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    REPRISE_RETURN_IF_ERROR(step.KeepHidden(states_.narrow(0, 0, step.num_tokens())));
    return model_->Forward(step.WithHidden(nullptr));
  }

 private:
  Model* model_;
  ModelSpec spec_;
  at::Tensor states_;
};

// One layer over the states that they see.
class OneLayerHeads : public DraftHeads {
 public:
  explicit OneLayerHeads(int vocab_size)
      : layers_({{.params =
                      {.num_q_heads = 2, .num_kv_heads = 1, .head_dim_qk = 64, .head_dim_v = 64}}}),
        out_(at::zeros({128, vocab_size}, at::TensorOptions(at::kCUDA).dtype(at::kBFloat16))) {}

  absl::Span<const LayerSpec> layers() const override { return layers_; }

  absl::StatusOr<HeadsOutput> Forward(const HeadsStep& heads_step) override {
    const Step& step = *heads_step.step;
    const at::Tensor k = heads_step.hidden.unsqueeze(1);
    const at::Tensor q = k.repeat({1, 2, 1});
    REPRISE_ASSIGN_OR_RETURN(const at::Tensor attended, step.Attend(0, q, k, k));
    const at::Tensor last = attended.index_select(0, step.logits_indices());
    return HeadsOutput{.logits = at::matmul(last.view({last.size(0), -1}), out_)};
  }

 private:
  std::vector<LayerSpec> layers_;
  at::Tensor out_;
};

// Leaves all drafts 0.
class NoDrafter : public Drafter {
 public:
  absl::Status Propose(const DraftStep&) override { return absl::OkStatus(); }
};

class SteadyDecodeTest : public testing::Test {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    const absl::Status status = Start();
    ASSERT_TRUE(status.ok()) << status;
  }

  absl::Status Start() {
    rows_.clear();
    runner_.reset();
    REPRISE_ASSIGN_OR_RETURN(const DecoderConfig config, LlamaPreset("jargon"));
    REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights,
                             MakeRandomWeights(config, {.device = c10::Device(c10::kCUDA, 0),
                                                        .dtype = DType::kBFloat16}));
    REPRISE_ASSIGN_OR_RETURN(model_, DecoderModel::Create(config, std::move(weights), {}));
    // Its own draft, or with the states that heads read.
    if (speculation_.draft_model() != nullptr) {
      speculation_.proposer = ModelProposer{*model_};
    }
    with_states_ = std::make_unique<WithStates>(model_.get(), /*max_num_tokens=*/64);
    Model* const served =
        speculation_.heads() != nullptr ? with_states_.get() : static_cast<Model*>(model_.get());
    REPRISE_ASSIGN_OR_RETURN(
        runner_,
        ModelRunner::Create(served, {.max_num_seqs = 8,
                                     .max_num_tokens = 64,
                                     .max_seq_len = 256,
                                     .logits = {.allowed_tokens = true, .max_log_probs = 2},
                                     .speculation = speculation_,
                                     .debug = {.trace = trace_}}));
    std::vector<SlotJoin> joins;
    std::vector<BlockTableUpdate> updates;
    std::vector<ScheduledRow> prefill;
    const std::vector<int32_t> prompt = {1, 2, 3};
    for (int slot = 0; slot < kNumRows; ++slot) {
      joins.push_back(JoinOf(SlotId(slot), {}, prompt.size()));
      for (int column = 0; column < 8; ++column) {
        updates.push_back(
            {.slot = SlotId(slot), .column = column, .block = BlockId(1 + 8 * slot + column)});
      }
      prefill.push_back({.slot = SlotId(slot), .tokens = prompt});
      rows_.push_back({.slot = SlotId(slot)});
    }
    REPRISE_RETURN_IF_ERROR(
        runner_->Step({.joins = joins, .updates = updates, .rows = prefill}).status());
    return Run(4);
  }

  // One step ahead of the host, as in an engine. `prepare`: changes rows_ before each step.
  // `awaited`: sees each step's result.
  absl::Status Run(
      int num_steps, const std::function<void(int step)>& prepare = [](int) {},
      const std::function<void(int step, const StepResult& result)>& awaited =
          [](int, const StepResult&) {}) {
    std::optional<int64_t> oldest;
    for (int step = 0; step <= num_steps; ++step) {
      std::optional<int64_t> next;
      if (step < num_steps) {
        prepare(step);
        REPRISE_ASSIGN_OR_RETURN(next, runner_->Launch({.rows = rows_}));
      }
      if (oldest.has_value()) {
        REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Await(*oldest));
        awaited(step - 1, result);
      }
      oldest = next;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<WithStates> with_states_;
  std::unique_ptr<ModelRunner> runner_;
  std::vector<ScheduledRow> rows_;
  StepTrace* trace_ = nullptr;  // of runners that Start() makes
  SpeculationOptions speculation_ = {};
};

enum class Copies { kNone, kOnDevice };

// No wait for the device but for the fence of a step's tokens, no copy but those that are
// `allowed`, no allocation.
void ExpectNothingWaits(const DeviceTrace& trace, Copies allowed = Copies::kNone) {
  for (const auto& [name, count] : trace.runtime_calls) {
    SCOPED_TRACE(testing::Message() << name << " x " << count);
    EXPECT_EQ(name.find("StreamSynchronize"), std::string::npos);
    EXPECT_EQ(name.find("DeviceSynchronize"), std::string::npos);
    EXPECT_EQ(name.find("Malloc"), std::string::npos);
    EXPECT_EQ(name.find("Memcpy"), std::string::npos);
  }
  for (const DeviceEvent& event : trace.events) {
    if (event.kind != DeviceEvent::Kind::kCopy) continue;
    EXPECT_TRUE(allowed == Copies::kOnDevice && event.name.find("DtoD") != std::string::npos)
        << event.name;
  }
}

TEST_F(SteadyDecodeTest, AStepIsOneRefillOneGraphAndOneSampling) {
  const int64_t replays_before = runner_->graph_report().num_replays();
  const auto trace = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(runner_->graph_report().num_replays() - replays_before, kNumSteps);
  EXPECT_EQ(trace->num_calls_like("GraphLaunch"), kNumSteps);
  EXPECT_EQ(trace->num_calls_like("LaunchKernel"), 2 * kNumSteps);  // refill and sampling
  ExpectNothingWaits(*trace);
}

// No kernel more for what drafters read: refill writes it. Heads that attend have one, which keeps
// the states of the step.
TEST_F(SteadyDecodeTest, APlainStepHasTheSameKernelsWhateverCouldPropose) {
  const auto count_kernels = [&] {
    const auto trace = TraceDevice([&] { return Run(kNumSteps); });
    EXPECT_TRUE(trace.ok()) << trace.status();
    if (!trace.ok()) return int64_t{0};
    return static_cast<int64_t>(std::count_if(
        trace->events.begin(), trace->events.end(),
        [](const DeviceEvent& event) { return event.kind == DeviceEvent::Kind::kKernel; }));
  };
  const int64_t plain = count_kernels();
  EXPECT_GT(plain, 10 * kNumSteps);
  NoDrafter drafter;
  OneLayerHeads heads(model_->spec().vocab_size);
  const std::pair<SpeculationOptions, int> cases[] = {
      {{.max_drafts = 3, .proposer = NgramProposer{}}, 0},
      {{.max_drafts = 3, .proposer = ModelProposer{*model_}}, 0},
      {{.max_drafts = 3, .proposer = CustomProposer{drafter}}, 0},
      {{.max_drafts = 3, .proposer = HeadsProposer{heads}}, 1}};
  for (const auto& [speculation, num_more] : cases) {
    SCOPED_TRACE(testing::Message() << "proposer " << speculation.proposer.index());
    speculation_ = speculation;
    const absl::Status started = Start();
    ASSERT_TRUE(started.ok()) << started;
    EXPECT_EQ(count_kernels(), plain + int64_t{num_more} * kNumSteps);
  }
}

// Drafts, their verification and the slots that advance are in the graph.
TEST_F(SteadyDecodeTest, AStepWithDraftsIsOneRefillAndOneGraph) {
  OneLayerHeads heads(model_->spec().vocab_size);
  const SpeculationOptions cases[] = {
      {.max_drafts = 3, .proposer = NgramProposer{}},
      {.max_drafts = 3, .proposer = NgramProposer{}, .acceptance = DraftAcceptance::kRejection},
      {.max_drafts = 3, .shape = DraftShape::kTree, .proposer = NgramProposer{}},
      {.max_drafts = 3, .proposer = ModelProposer{*model_}},
      {.max_drafts = 3,
       .shape = DraftShape::kTree,
       .tree = {0, 0, 1},
       .proposer = ModelProposer{*model_}},
      {.max_drafts = 3, .proposer = HeadsProposer{heads}}};
  for (const SpeculationOptions& speculation : cases) {
    SCOPED_TRACE(testing::Message() << "proposer " << speculation.proposer.index() << ", tree "
                                    << (speculation.shape == DraftShape::kTree) << ", acceptance "
                                    << static_cast<int>(speculation.acceptance));
    speculation_ = speculation;
    const absl::Status started = Start();
    ASSERT_TRUE(started.ok()) << started;
    for (ScheduledRow& row : rows_) row.num_drafts = 3;
    ASSERT_TRUE(Run(2).ok());
    const auto trace = TraceDevice([&] { return Run(kNumSteps); });
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->num_calls_like("GraphLaunch"), kNumSteps);
    EXPECT_EQ(trace->num_calls_like("LaunchKernel"), kNumSteps);  // refill
    const bool has_passes = speculation.ngram() == nullptr;
    ExpectNothingWaits(*trace, has_passes ? Copies::kOnDevice : Copies::kNone);
    AllocationCounter allocations;
    ASSERT_TRUE(Run(5).ok());
    EXPECT_EQ(allocations.count(), 0);
  }
}

// Rows with drafts beside a chunk of a prompt, which is the last row's: a mixed graph.
TEST_F(SteadyDecodeTest, AMixedStepWithDraftsIsOneRefillAndOneGraph) {
  speculation_ = {.max_drafts = 3, .proposer = NgramProposer{}};
  const absl::Status started = Start();
  ASSERT_TRUE(started.ok()) << started;
  const std::vector<int32_t> chunk = {5, 6, 7};
  for (ScheduledRow& row : rows_) row.num_drafts = 3;
  rows_.back().num_drafts = 0;
  rows_.back().tokens = chunk;
  rows_.back().output = RowOutput::kNone;
  ASSERT_TRUE(Run(2).ok());
  const int64_t replays_before = runner_->graph_report().num_replays();
  const auto trace = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(runner_->graph_report().num_replays() - replays_before, kNumSteps);
  EXPECT_EQ(trace->num_calls_like("GraphLaunch"), kNumSteps);
  EXPECT_EQ(trace->num_calls_like("LaunchKernel"), kNumSteps);
  ExpectNothingWaits(*trace);
}

// Two rows with a mask of their own in each step: one token of which the test knows that it must be
// chosen, another one in every step.
TEST_F(SteadyDecodeTest, MasksThatChangeEveryStepAreAKernelMoreAndNeitherWaitNorCopy) {
  const int vocab_size = model_->spec().vocab_size;
  const size_t num_words = static_cast<size_t>(MaskWords(vocab_size));
  const auto allowed = [&](int step, int row) { return (7 * step + 31 * row + 3) % vocab_size; };
  std::vector<int32_t> masks(2 * num_words);
  const std::vector<int> masked_rows = {1, 3};
  // Written into the same memory before each step: a runner reads it during Launch() alone.
  const auto set_masks = [&](int step) {
    std::fill(masks.begin(), masks.end(), 0);
    for (size_t i = 0; i < masked_rows.size(); ++i) {
      const int token = allowed(step, masked_rows[i]);
      const absl::Span<int32_t> mask = absl::MakeSpan(masks).subspan(i * num_words, num_words);
      mask[token / 32] = static_cast<int32_t>(uint32_t{1} << (token % 32));
      rows_[masked_rows[i]].allowed_tokens = mask;
    }
  };
  const auto check_tokens = [&](int step, const StepResult& result) {
    for (const int row : masked_rows) {
      EXPECT_EQ(result.tokens[row], allowed(step, row)) << "step " << step << ", row " << row;
    }
  };
  const auto plain = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(plain.ok()) << plain.status();
  ASSERT_TRUE(Run(4, set_masks, check_tokens).ok());
  const int64_t replays_before = runner_->graph_report().num_replays();
  const auto masked = TraceDevice([&] { return Run(kNumSteps, set_masks, check_tokens); });
  ASSERT_TRUE(masked.ok()) << masked.status();
  EXPECT_EQ(runner_->graph_report().num_replays() - replays_before, kNumSteps);
  EXPECT_EQ(masked->num_calls_like("GraphLaunch"), kNumSteps);
  EXPECT_EQ(masked->num_calls_like("LaunchKernel"),
            plain->num_calls_like("LaunchKernel") + kNumSteps);
  // The host waits for the tokens of each step, and for nothing else: no ring is waited for.
  EXPECT_EQ(plain->num_calls_like("Synchronize"), kNumSteps);
  EXPECT_EQ(masked->num_calls_like("Synchronize"), kNumSteps);
  ExpectNothingWaits(*masked);

  const std::function<void(int)> prepare = set_masks;  // which may allocate
  AllocationCounter allocations;
  const absl::Status status = Run(kNumSteps, prepare);
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(status.ok()) << status;
}

// -1 before the first one.
int LastStepOf(const StepTrace& trace) {
  int last = -1;
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("tid") == 1) {
      last = std::max(last, event.at("args").at("step").get<int>());
    }
  }
  return last;
}

// Marks of the device's spans are events: what they add waits for nothing, and what they tell lies
// where the host saw it.
TEST_F(SteadyDecodeTest, ATraceOfTheDeviceDoesNotWaitForIt) {
  StepTrace trace;
  trace_ = &trace;
  const absl::Status started = Start();
  ASSERT_TRUE(started.ok()) << started;
  ASSERT_TRUE(Run(4).ok());
  const int64_t events_before = trace.num_events();
  const int64_t first_step = 1 + LastStepOf(trace);
  const auto device = TraceDevice([&] { return Run(kNumSteps); });
  ASSERT_TRUE(device.ok()) << device.status();
  ExpectNothingWaits(*device);
  EXPECT_EQ(device->num_calls_like("LaunchKernel"), 2 * kNumSteps);
  // launch, plan, refill, replay, sample, await, counts; refill, replay and sample of the device
  EXPECT_EQ(trace.num_events() - events_before, 10 * kNumSteps);
  double replay_us = 0;
  double kernel_us = 0;
  const nlohmann::json json = nlohmann::json::parse(trace.ToJson());
  int num_replays = 0;
  std::map<int, double> launched, awaited;  // begin of the launch, end of the await, by step
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("tid") != 1) continue;
    const int step = event.at("args").at("step");
    const double begin = event.at("ts");
    if (event.at("name") == "launch") launched[step] = begin;
    if (event.at("name") == "await") awaited[step] = begin + event.at("dur").get<double>();
  }
  for (const nlohmann::json& event : json.at("traceEvents")) {
    if (event.at("ph") != "X" || event.at("tid") != 2) continue;
    const int step = event.at("args").at("step");
    const double begin = event.at("ts");
    const double us = event.at("dur");
    EXPECT_GE(begin, launched.at(step) - 0.01) << event.at("name");
    EXPECT_LE(begin + us, awaited.at(step) + 0.01) << event.at("name");
    if (event.at("name") != "replay" || step < first_step) continue;
    ++num_replays;
    replay_us += us;
  }
  EXPECT_EQ(num_replays, kNumSteps);
  for (const DeviceEvent& event : device->events) kernel_us += event.duration_us;
  // Kernels run within the spans, but for those of refill and sampling, which are short.
  EXPECT_GT(replay_us, 0.5 * kernel_us);
}

TEST_F(SteadyDecodeTest, AStepAllocatesNothingOnTheHeap) {
  AllocationCounter allocations;
  const absl::Status status = Run(kNumSteps);
  EXPECT_EQ(allocations.count(), 0);
  EXPECT_TRUE(status.ok()) << status;
}

// The next launch does not wait for the tokens of the last: two steps are enqueued while a token is
// not awaited.
TEST_F(SteadyDecodeTest, ReadingTokensLateChangesNothing) {
  std::vector<std::vector<int32_t>> late;
  int64_t oldest = *runner_->Launch({.rows = rows_});
  for (int step = 0; step < kNumSteps; ++step) {
    const auto next = runner_->Launch({.rows = rows_});
    ASSERT_TRUE(next.ok()) << next.status();
    const auto result = runner_->Await(oldest);
    ASSERT_TRUE(result.ok()) << result.status();
    late.emplace_back(result->tokens.begin(), result->tokens.end());
    oldest = *next;
  }
  ASSERT_TRUE(runner_->Await(oldest).ok());

  const absl::Status again = Start();
  ASSERT_TRUE(again.ok()) << again;
  for (int step = 0; step < kNumSteps; ++step) {
    const auto result = runner_->Step({.rows = rows_});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(std::vector<int32_t>(result->tokens.begin(), result->tokens.end()), late[step])
        << "step " << step;
  }
}

}  // namespace
}  // namespace reprise
