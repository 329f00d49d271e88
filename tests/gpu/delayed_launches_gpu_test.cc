// The rule of base/dependent_launch.cuh, held by all kernels of a decode step: delays in each
// kernel in turn, and random ones in the others, change no bit.

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/models/decoder/decoder_model.h"
#include "reprise/models/decoder/decoder_weights.h"
#include "reprise/models/decoder/public_configs.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/ops/fp8/quantise_weight.h"
#include "reprise/runner/ops/linear.h"
#include "tests/gpu/delay_kernels.h"
#include "tests/gpu/delayed_launches.h"

namespace reprise {
namespace {

constexpr int kNumSteps = 200;
constexpr int kMaxLaunches = 4096;

// Chains of kernels that each read what the one before has written.
class DelayedChainTest : public testing::Test {
 protected:
  static constexpr int kLength = 6;

  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  }

  // Replays of the chain with a delay in each kernel in turn whose result is not the right one.
  int NumWrong(ReadOrder order) {
    DelayedLaunches delays(kMaxLaunches);
    EXPECT_TRUE(delays.status().ok()) << delays.status();
    const at::Tensor values =
        at::full({kLength + 1}, 0, at::TensorOptions(c10::Device(c10::kCUDA, 0)).dtype(at::kInt));
    c10::cuda::getCurrentCUDAStream(0).synchronize();
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool(false, 0);
    const c10::cuda::CUDAStreamGuard guard(side);
    int32_t* const data = values.mutable_data_ptr<int32_t>();
    at::cuda::CUDAGraph graph;
    graph.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    {
      const DelayedLaunches::Scope scope(delays);
      for (int i = 0; i < kLength; ++i) {
        const absl::Status status = LaunchAddOne(data + i, data + i + 1, order, side);
        EXPECT_TRUE(status.ok()) << status;
      }
    }
    graph.capture_end();
    EXPECT_EQ(delays.count(), kLength);
    int num_wrong = 0;
    for (int replay = 0; replay < 4 * kLength; ++replay) {
      values.zero_();
      values.narrow(0, 0, 1).fill_(replay);
      for (int i = 0; i < kLength; ++i) delays.Set(i, i == replay % kLength ? 100 : 0);
      graph.replay();
      side.synchronize();
      num_wrong += values[kLength].item<int32_t>() != replay + kLength ? 1 : 0;
    }
    return num_wrong;
  }
};

TEST_F(DelayedChainTest, KernelsThatWaitFirstAreRight) {
  EXPECT_EQ(NumWrong(ReadOrder::kAfterWait), 0);
}

TEST_F(DelayedChainTest, AKernelThatReadsBeforeItsWaitShows) {
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  if (major < 9) GTEST_SKIP() << "kernels overlap from compute capability 9.0 on";
  EXPECT_GT(NumWrong(ReadOrder::kBeforeWait), 0);
}

struct StepKind {
  const char* name;
  int num_rows;
  bool has_fp8_weights;
  int num_drafts;
};

// What a decode step may be made of: products of few rows and by tiles, of 16 and of 8 bits; the
// verification of drafts.
class DelayedStepTest : public testing::TestWithParam<StepKind> {
 protected:
  void SetUp() override {
    if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    const absl::Status status = Create();
    ASSERT_TRUE(status.ok()) << status;
  }

  absl::Status Create() {
    REPRISE_RETURN_IF_ERROR(delays_.status());
    REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LlamaPreset("llama-3.1-8b"));
    // Products large enough to be timed, and so for kernels of our own.
    config.hidden_size = 2048;
    config.intermediate_size = 4096;
    config.num_q_heads = 16;
    config.num_kv_heads = 4;
    config.num_layers = kNumLayers;
    config.vocab_size = 4096;
    REPRISE_ASSIGN_OR_RETURN(DecoderWeights weights,
                             MakeRandomWeights(config, {.device = c10::Device(c10::kCUDA, 0),
                                                        .dtype = DType::kBFloat16}));
    if (GetParam().has_fp8_weights) {
      for (DecoderLayerWeights& layer : weights.layers) {
        for (Linear* product : {&*layer.qkv, &layer.o, &*layer.gate_up, &*layer.down}) {
          REPRISE_ASSIGN_OR_RETURN(QuantisedWeight small,
                                   QuantiseWeight(product->weight(), ScaledBy::kBlock));
          REPRISE_ASSIGN_OR_RETURN(
              *product,
              Linear::CreateScaled(std::move(small.values), std::move(small.scales), std::nullopt));
        }
      }
    }
    REPRISE_ASSIGN_OR_RETURN(model_, DecoderModel::Create(config, std::move(weights), {}));
    const int num_rows = GetParam().num_rows, num_drafts = GetParam().num_drafts;
    const DelayedLaunches::Scope scope(delays_);
    REPRISE_ASSIGN_OR_RETURN(
        runner_, ModelRunner::Create(model_.get(),
                                     {.max_num_seqs = num_rows,
                                      .max_num_tokens = num_rows * (1 + num_drafts),
                                      .max_seq_len = kMaxSeqLen,
                                      .max_steps_in_flight = 1,
                                      .cache = {.size = NumBlocks{1 + num_rows * kBlocks}},
                                      .graphs = {.sizes = {num_rows}, .mixed = MixedGraphs::kOff},
                                      .speculation = {.max_drafts = num_drafts},
                                      .device = {.cascade = CascadeMode::kOff}}));
    return absl::OkStatus();
  }

  // What kNumSteps steps gave: by step, tokens and logits.
  struct Run {
    std::vector<std::vector<int32_t>> tokens;
    std::vector<at::Tensor> logits;
    std::vector<at::Tensor> cache;
  };

  // From the same start each time; `prepare` is called before each step.
  template <typename Prepare>
  absl::StatusOr<Run> Decode(Prepare prepare) {
    const int num_rows = GetParam().num_rows;
    std::vector<SlotId> leaves;
    std::vector<SlotJoin> joins;
    std::vector<BlockTableUpdate> updates;
    std::vector<ScheduledRow> first_rows, rows;
    std::vector<std::vector<int32_t>> first_tokens;
    const std::vector<int32_t> drafts(GetParam().num_drafts, 7);
    for (int slot = 0; slot < num_rows; ++slot) {
      leaves.push_back(SlotId(slot));
      joins.push_back(JoinOf(SlotId(slot), {}, 1));
      for (int column = 0; column < kBlocks; ++column) {
        updates.push_back({.slot = SlotId(slot),
                           .column = column,
                           .block = BlockId(1 + kBlocks * slot + column)});
      }
      first_tokens.push_back({17 + slot});
      rows.push_back({.slot = SlotId(slot), .drafts = drafts});
    }
    for (int slot = 0; slot < num_rows; ++slot) {
      first_rows.push_back({.slot = SlotId(slot), .tokens = first_tokens[slot]});
    }
    if (has_run_) REPRISE_RETURN_IF_ERROR(runner_->Step({.leaves = leaves}).status());
    has_run_ = true;
    // What an earlier run has left must not be what this one would write.
    for (int layer = 0; layer < kNumLayers; ++layer) {
      for (at::Tensor tensor : runner_->kv_cache().tensors(layer)) tensor.fill_(3);
    }
    c10::cuda::device_synchronize();
    REPRISE_RETURN_IF_ERROR(
        runner_->Step({.joins = joins, .updates = updates, .rows = first_rows}).status());
    Run run;
    for (int step = 0; step < kNumSteps; ++step) {
      prepare(step);
      REPRISE_ASSIGN_OR_RETURN(const StepResult result, runner_->Step({.rows = rows}));
      const absl::Span<const int32_t> tokens =
          GetParam().num_drafts > 0 ? result.new_tokens : result.tokens;
      run.tokens.emplace_back(tokens.begin(), tokens.end());
      REPRISE_ASSIGN_OR_RETURN(const at::Tensor logits, runner_->logits(result.step));
      run.logits.push_back(logits.clone());
      if (result.decision.kind != GraphDecision::Kind::kReplay) {
        return absl::InternalError("a step was not replayed");
      }
    }
    for (int layer = 0; layer < kNumLayers; ++layer) {
      for (const at::Tensor& tensor : runner_->kv_cache().tensors(layer)) {
        run.cache.push_back(tensor.clone());
      }
    }
    return run;
  }

  static constexpr int kNumLayers = 2;
  static constexpr int kBlocks = 80;  // of 16 tokens: all drafts of all steps may be accepted
  static constexpr int kMaxSeqLen = kBlocks * 16;

  DelayedLaunches delays_{kMaxLaunches};
  std::unique_ptr<DecoderModel> model_;
  std::unique_ptr<ModelRunner> runner_;
  bool has_run_ = false;
};

TEST_P(DelayedStepTest, DelaysInEachKernelChangeNoBit) {
  // A layer has two norms, rotary embedding, attention and an activation, and products, of which
  // cuBLASLt's have no delays.
  EXPECT_GE(delays_.count(), kNumLayers * (GetParam().has_fp8_weights ? 9 : 5));
  const absl::StatusOr<Run> plain = Decode([](int) {});
  ASSERT_TRUE(plain.ok()) << plain.status();
  std::mt19937 random(5);
  const absl::StatusOr<Run> delayed = Decode([&](int step) {
    for (int i = 0; i < delays_.count(); ++i) {
      const uint32_t some = random() % 4 == 0 ? random() % 8 : 0;
      delays_.Set(i, i == step % delays_.count() ? 20 + random() % 60 : some);
    }
  });
  ASSERT_TRUE(delayed.ok()) << delayed.status();
  for (int step = 0; step < kNumSteps; ++step) {
    ASSERT_EQ(delayed->tokens[step], plain->tokens[step]) << "step " << step;
    ASSERT_TRUE(at::equal(delayed->logits[step], plain->logits[step])) << "step " << step;
  }
  for (size_t i = 0; i < plain->cache.size(); ++i) {
    EXPECT_TRUE(at::equal(delayed->cache[i], plain->cache[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Steps, DelayedStepTest,
    testing::Values(StepKind{"FewRows", 4, false, 0}, StepKind{"Tiles", 20, false, 0},
                    StepKind{"Fp8FewRows", 4, true, 0}, StepKind{"Fp8Tiles", 40, true, 0},
                    StepKind{"Drafts", 4, false, 4}),
    [](const testing::TestParamInfo<StepKind>& info) { return info.param.name; });

}  // namespace
}  // namespace reprise
