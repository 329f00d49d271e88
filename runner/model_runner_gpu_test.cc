#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/testing/stream_gate.h"
#include "reprise/runner/model_runner.h"
#include "reprise/runner/ops/linear.h"
#include "reprise/runner/testing/model_runner_suite.h"
#include "reprise/runner/testing/toy_model.h"

namespace reprise {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, ModelRunnerSuite, testing::Values(c10::kCUDA));
// The runner's device is not the current device, which is GPU 0.
INSTANTIATE_TEST_SUITE_P(SecondGpu, ModelRunnerSuite, testing::Values(c10::Device(c10::kCUDA, 1)));

// The logits of each token are one GEMM with its embedding.
class ProductModel : public Model {
 public:
  static constexpr int kWidth = 1024;
  static constexpr int kVocab = 2048;  // 4 MiB of weights, large enough to be timed

  ProductModel() {
    const auto options = at::TensorOptions(c10::kCUDA).dtype(at::kBFloat16);
    embedding_ = at::randn({kVocab, kWidth}, options);
    head_ = *Linear::Create(at::randn({kVocab, kWidth}, options), std::nullopt);
    spec_ = {.layers = {{.params = {.num_q_heads = 1,
                                    .num_kv_heads = 1,
                                    .head_dim_qk = 64,
                                    .head_dim_v = 64}}},
             .vocab_size = kVocab,
             .max_position = 64,
             .dtype = DType::kBFloat16,
             .device = c10::kCUDA};
  }

  const ModelSpec& spec() const override { return spec_; }
  at::Tensor& embedding() { return embedding_; }

  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    const at::Tensor x =
        embedding_.index_select(0, step.token_ids()).index_select(0, step.logits_indices());
    REPRISE_RETURN_IF_ERROR(head_->Apply(step.linears(), x, step.logits()));
    return step.logits();
  }

 protected:
  ModelSpec spec_;
  at::Tensor embedding_;
  std::optional<Linear> head_;
};

// Computes the logits of every token of the step.
class EveryTokenModel : public ProductModel {
 public:
  absl::StatusOr<at::Tensor> Forward(const Step& step) override {
    const at::Tensor x = embedding_.index_select(0, step.token_ids());
    at::Tensor products = at::empty({x.size(0), kVocab}, x.options());
    REPRISE_RETURN_IF_ERROR(head_->Apply(step.linears(), x, products));
    return products.index_select(0, step.logits_indices());
  }
};

class ModelRunnerGpuTest : public DeviceSuite {};
INSTANTIATE_TEST_SUITE_P(Cuda, ModelRunnerGpuTest, testing::Values(c10::kCUDA));

// Weights are often filled on a stream of the caller.
TEST_P(ModelRunnerGpuTest, StepsReadWritesOfTheCallersStreamBeforeCreate) {
  ProductModel model;
  {
    auto runner = ModelRunner::Create(&model, {.max_num_seqs = 1, .max_num_tokens = 4});
    ASSERT_TRUE(runner.ok()) << runner.status();  // loads the kernels
  }
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  model.embedding().mul_(1);
  stream.synchronize();
  StreamGate gate(stream.stream());
  model.embedding().mul_(2);
  std::atomic<bool> is_open = false;
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    is_open = true;
    gate.Open();
  });
  auto runner = ModelRunner::Create(&model, {.max_num_seqs = 1, .max_num_tokens = 4});
  EXPECT_TRUE(is_open);  // captures wait for their warm-ups, which wait for the weights
  opener.join();
  EXPECT_TRUE(runner.ok()) << runner.status();
}

// Nested work, also if the outer work makes another stream current.
TEST_P(ModelRunnerGpuTest, NestedWorkRunsOnTheDriversStream) {
  auto made = *MakeDeviceDriver(c10::kCUDA, {});
  DeviceDriver& driver = *made;
  const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
  const auto current = [] { return c10::cuda::getCurrentCUDAStream().unwrap(); };
  int num_seen = 0;
  const auto expect_driver_stream = [&] {
    EXPECT_EQ(current(), driver.stream());
    ++num_seen;
    return absl::OkStatus();
  };
  EXPECT_TRUE(driver
                  .OnStream([&]() -> absl::Status {
                    REPRISE_RETURN_IF_ERROR(driver.OnStream(expect_driver_stream));
                    const c10::cuda::CUDAStream other = c10::cuda::getStreamFromPool();
                    const c10::cuda::CUDAStreamGuard guard(other);
                    REPRISE_RETURN_IF_ERROR(driver.OnStream(expect_driver_stream));
                    EXPECT_EQ(current(), other.unwrap());
                    return absl::OkStatus();
                  })
                  .ok());
  EXPECT_EQ(num_seen, 2);
  EXPECT_EQ(current(), before.unwrap());
}

TEST_P(ModelRunnerGpuTest, EveryModeTimesTheGemmsOfCapturedSizes) {
  using Mode = GraphSetOptions::Mode;
  for (const Mode mode : {Mode::kEager, Mode::kLazy, Mode::kOff}) {
    SCOPED_TRACE(static_cast<int>(mode));
    ProductModel model;
    auto made = *MakeDeviceDriver(c10::kCUDA, {});
    DeviceDriver* const driver = made.get();
    auto runner = ModelRunner::Create(
        &model, {.max_num_seqs = 8, .max_num_tokens = 40, .graphs = {.mode = mode}},
        std::move(made));
    ASSERT_TRUE(runner.ok()) << runner.status();
    std::vector<int64_t> timed;
    for (const LinearChoice& choice : driver->linears().Choices()) {
      if (choice.source == LinearChoice::Source::kTimed) timed.push_back(choice.num_rows);
    }
    EXPECT_THAT(timed, testing::UnorderedElementsAre(1, 2, 4, 8));
  }
}

TEST_P(ModelRunnerGpuTest, EveryModeTimesTheGemmsOfMixedSteps) {
  using Mode = GraphSetOptions::Mode;
  for (const Mode mode : {Mode::kEager, Mode::kLazy, Mode::kOff}) {
    SCOPED_TRACE(static_cast<int>(mode));
    EveryTokenModel model;
    auto made = *MakeDeviceDriver(c10::kCUDA, {});
    DeviceDriver* const driver = made.get();
    auto runner = ModelRunner::Create(
        &model, {.max_num_seqs = 2, .max_num_tokens = 200, .graphs = {.mode = mode}},
        std::move(made));
    ASSERT_TRUE(runner.ok()) << runner.status();
    std::vector<int64_t> timed;
    for (const LinearChoice& choice : driver->linears().Choices()) {
      if (choice.source == LinearChoice::Source::kTimed) timed.push_back(choice.num_rows);
    }
    EXPECT_THAT(timed, testing::UnorderedElementsAre(1, 2, 64, 128, 192, 200));
  }
}

TEST_P(ModelRunnerGpuTest, TheCacheLeavesRoomForTheLargestStep) {
  ToyModel model({.max_position = 4096, .device = c10::kCUDA});
  auto created = ModelRunner::Create(
      &model,
      {.max_num_seqs = 64, .max_num_tokens = 4096, .cache = {.size = NumBytes{int64_t{64} << 20}}});
  ASSERT_TRUE(created.ok()) << created.status();
  const MemoryUse& use = (*created)->memory_use();
  EXPECT_GT(use.eager_bytes, 4096 * 128 * 4);  // q of a layer
  EXPECT_GT(use.step_bytes, 64 * 61 * 4);      // the logits
  ASSERT_TRUE(use.free_bytes.has_value());
  EXPECT_LE(use.cache_bytes, int64_t{64} << 20);
  EXPECT_LE(use.eager_bytes + use.graph_bytes + use.cache_bytes, *use.free_bytes);
}

}  // namespace
}  // namespace reprise
