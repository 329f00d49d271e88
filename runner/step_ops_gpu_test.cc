// Runs the ops of a step in sequence, in a captured graph.

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "reprise/cache/storage/kv_cache.h"
#include "reprise/runner/ops/elementwise.h"
#include "reprise/runner/ops/gather_rows.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ops/rotary.h"
#include "reprise/runner/ops/rotary_table.h"
#include "reprise/runner/ops/test_device.h"
#include "reprise/runner/ops/test_tensors.h"
#include "reprise/runner/sampling/sampling.h"

namespace reprise {
namespace {

constexpr int64_t kTokens = 5;
constexpr int64_t kVocabulary = 1000;
constexpr int64_t kHidden = 256;
constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 64;
constexpr int64_t kIntermediate = 512;

// A layer without attention. All its memory has constant addresses.
class Layer {
 public:
  explicit Layer(at::Device device) : options_(at::TensorOptions(device).dtype(at::kBFloat16)) {
    std::mt19937 random(1);
    const auto weight = [&](int64_t out, int64_t in) {
      return (RandomNormal(random, {out, in}, at::kFloat) * 0.05).to(at::kBFloat16).to(device);
    };
    embedding_ = weight(kVocabulary, kHidden);
    norm_ = RandomNormal(random, {kHidden}, at::kBFloat16).to(device);
    qkv_ =
        Linear::Create(weight((kHeads + 2 * kKvHeads) * kHeadDim, kHidden), std::nullopt).value();
    gate_up_ = Linear::Create(weight(2 * kIntermediate, kHidden), std::nullopt).value();
    down_ = Linear::Create(weight(kHidden, kIntermediate), std::nullopt).value();
    head_ = Linear::Create(embedding_, std::nullopt).value();
    const std::vector<float> frequencies(kHeadDim / 2, 0.3f);
    table_ = MakeRotaryTable(frequencies, 64, 1.0f, device).value();
    context_ = MakeLinearContext(device, {}).value();
    cache_ = KvCache::Create(KvLayout::Create({.num_layers = 1,
                                               .num_blocks = 4,
                                               .block_size = 4,
                                               .num_kv_heads = kKvHeads,
                                               .head_dim_qk = kHeadDim,
                                               .head_dim_v = kHeadDim,
                                               .dtype = DType::kBFloat16})
                                 .value(),
                             device)
                 .value();
    token_ids_ = at::zeros({kTokens}, options_.dtype(at::kInt));
    positions_ = at::zeros({kTokens}, options_.dtype(at::kInt));
    slot_mapping_ = at::zeros({kTokens}, options_.dtype(at::kLong));
    hidden_ = at::empty({kTokens, kHidden}, options_);
    normed_ = at::empty({kTokens, kHidden}, options_);
    fused_ = at::empty({kTokens, (kHeads + 2 * kKvHeads) * kHeadDim}, options_);
    wide_ = at::empty({kTokens, 2 * kIntermediate}, options_);
    activated_ = at::empty({kTokens, kIntermediate}, options_);
    logits_ = at::empty({kTokens, kVocabulary}, options_.dtype(at::kFloat));
    sample_slot_ = at::tensor(std::vector<int>{0, 1, 2, 3, -1}).to(at::kInt).to(device);
    last_token_ = at::zeros({kTokens}, options_.dtype(at::kInt));
    sample_index_ = at::zeros({kTokens}, options_.dtype(at::kLong));
    // All bytes are zero: greedy.
    sampling_ = at::zeros({static_cast<int64_t>(kTokens * sizeof(SamplingParams))},
                          options_.dtype(at::kByte));
    tokens_ = at::zeros({kTokens}, options_.dtype(at::kInt));
  }

  // Writes the inputs of a step.
  void SetInputs(std::mt19937& random) {
    std::vector<int> ids, positions;
    std::vector<int64_t> slots;
    for (int64_t i = 0; i < kTokens; ++i) {
      ids.push_back(static_cast<int>(random() % kVocabulary));
      positions.push_back(static_cast<int>(random() % 64));
      slots.push_back(i == kTokens - 1 ? -1 : 4 + static_cast<int64_t>(i) * 3);
    }
    token_ids_.copy_(at::tensor(ids));
    positions_.copy_(at::tensor(positions));
    slot_mapping_.copy_(at::tensor(slots));
  }

  absl::Status Run() {
    const auto heads = [&](int64_t first, int64_t count) {
      return fused_.narrow(1, first * kHeadDim, count * kHeadDim).unflatten(1, {count, kHeadDim});
    };
    absl::Status status = GatherRows(embedding_, token_ids_, hidden_);
    status.Update(RmsNorm(hidden_, norm_, 1e-5f, normed_));
    status.Update(qkv_->Apply(*context_, normed_, fused_));
    status.Update(RotaryWriteKv(heads(0, kHeads), heads(kHeads, kKvHeads),
                                heads(kHeads + kKvHeads, kKvHeads), positions_, table_,
                                cache_->layer(0), slot_mapping_));
    status.Update(AddRmsNorm(fused_.narrow(1, 0, kHidden), hidden_, norm_, 1e-5f, normed_));
    status.Update(gate_up_->Apply(*context_, normed_, wide_));
    status.Update(GateMul(Activation::kSilu, wide_, activated_));
    status.Update(down_->Apply(*context_, activated_, normed_));
    status.Update(AddRmsNorm(normed_, hidden_, norm_, 1e-5f, normed_));
    status.Update(head_->Apply(*context_, normed_, logits_));
    status.Update(Sample({.logits = logits_,
                          .slots = {.params = reinterpret_cast<const SamplingParams*>(
                                        sampling_.const_data_ptr<uint8_t>()),
                                    .last_token = last_token_.mutable_data_ptr<int32_t>(),
                                    .sample_index = sample_index_.mutable_data_ptr<int64_t>(),
                                    .num_slots = kTokens},
                          .sample_slot = sample_slot_.const_data_ptr<int32_t>(),
                          .out = tokens_.mutable_data_ptr<int32_t>(),
                          .features = SamplingFeatures::kGeneral}));
    return status;
  }

  // Returns all results of a step.
  std::vector<at::Tensor> Results() const {
    return {logits_.clone(), tokens_.clone(), last_token_.clone(),
            cache_->tensors(0)[0].slice(0, 1).clone(), cache_->tensors(0)[1].slice(0, 1).clone()};
  }

  const std::vector<LinearChoice> choices() const { return context_->Choices(); }

 private:
  at::TensorOptions options_;
  at::Tensor embedding_, norm_, table_;
  std::optional<Linear> qkv_, gate_up_, down_, head_;
  std::unique_ptr<LinearContext> context_;
  std::optional<KvCache> cache_;
  at::Tensor token_ids_, positions_, slot_mapping_;
  at::Tensor hidden_, normed_, fused_, wide_, activated_, logits_;
  at::Tensor sample_slot_, last_token_, sample_index_, sampling_, tokens_;
};

class StepOpsGpuTest : public DeviceTest {};

TEST_F(StepOpsGpuTest, ReplayedStepIsBitwiseIdenticalToTheEagerStep) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, 0);
  const c10::cuda::CUDAStreamGuard guard(stream);
  Layer layer(device());
  std::mt19937 random(2);
  layer.SetInputs(random);
  ASSERT_TRUE(layer.Run().ok()) << layer.Run();  // chooses algorithms

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const absl::Status captured = layer.Run();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_TRUE(captured.ok()) << captured;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  size_t num_nodes = 0;
  ASSERT_EQ(cudaGraphGetNodes(graph, nullptr, &num_nodes), cudaSuccess);
  EXPECT_GE(num_nodes, 11);  // one per op; a split-K GEMM has more

  for (int step = 0; step < 5; ++step) {
    layer.SetInputs(random);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    const std::vector<at::Tensor> replayed = layer.Results();
    ASSERT_TRUE(layer.Run().ok());
    const std::vector<at::Tensor> eager = layer.Results();
    for (size_t i = 0; i < eager.size(); ++i) {
      EXPECT_TRUE(Equals(replayed[i], eager[i])) << "result " << i << " of step " << step;
    }
    EXPECT_EQ(eager[1][4].item<int32_t>(), -1);
  }
  for (const LinearChoice& choice : layer.choices()) {
    EXPECT_EQ(choice.source, LinearChoice::Source::kHeuristic) << ToString(choice);
  }
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(StepOpsGpuTest, AShapeFirstSeenDuringCaptureTakesTheFirstProposal) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, 0);
  const c10::cuda::CUDAStreamGuard guard(stream);
  ASSERT_TRUE(Layer(device()).Run().ok());  // loads the kernels
  Layer layer(device());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  const absl::Status captured = layer.Run();
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_TRUE(captured.ok()) << captured;
  ASSERT_EQ(layer.choices().size(), 4);
  for (const LinearChoice& choice : layer.choices()) {
    EXPECT_EQ(choice.source, LinearChoice::Source::kCaptured) << ToString(choice);
  }
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace reprise
