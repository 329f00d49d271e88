#include "examples/llama/linear_reader.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/llama/checkpoint.h"
#include "examples/llama/safetensors_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reprise {
namespace {

using testing::HasSubstr;

class LinearReaderTest : public testing::Test {
 protected:
  LinearReaderTest() {
    const std::filesystem::path folder =
        std::filesystem::path(testing::TempDir()) / "linear_reader_test";
    std::filesystem::create_directories(folder);
    std::vector<TensorToWrite> tensors;
    const auto add = [&](const char* name, const at::Tensor& tensor) {
      tensors.push_back({name,
                         {.type = StoredType::kFloat32,
                          .shape = tensor.sizes().vec(),
                          .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                    static_cast<size_t>(tensor.nbytes())}}});
    };
    add("layer.q.weight", q_);
    add("layer.q.bias", q_bias_);
    add("layer.k.weight", k_);
    add("layer.k.bias", k_bias_);
    add("layer.bare.weight", q_);
    EXPECT_TRUE(WriteSafetensors((folder / "model.safetensors").string(), tensors).ok());
    reader_.emplace(std::make_shared<const Checkpoint>(*Checkpoint::Open(folder.string())),
                    c10::kCPU, DType::kFloat32);
  }

  const at::Tensor q_ = at::randn({6, 4});
  const at::Tensor k_ = at::randn({2, 4});
  const at::Tensor q_bias_ = at::randn({6});
  const at::Tensor k_bias_ = at::randn({2});
  std::optional<CheckpointReader> reader_;
};

TEST_F(LinearReaderTest, PartsStandSideBySideWithTheirBiases) {
  const auto linear = AddLinear(*reader_, "layer.", {{"q"}, {"k"}}, LinearBias::kAdded);
  ASSERT_TRUE(linear.ok()) << linear.status();
  ASSERT_TRUE(reader_->Run({}).ok());
  EXPECT_TRUE(at::equal(linear->weight(), at::cat({q_, k_})));
  ASSERT_TRUE(linear->bias().has_value());
  EXPECT_TRUE(at::equal(*linear->bias(), at::cat({q_bias_, k_bias_})));
}

TEST_F(LinearReaderTest, ABiasIsLeftAloneUnlessItIsAdded) {
  const auto linear = AddLinear(*reader_, "layer.", {{"q"}}, BiasIf(false));
  ASSERT_TRUE(linear.ok()) << linear.status();
  ASSERT_TRUE(reader_->Run({}).ok());
  EXPECT_TRUE(at::equal(linear->weight(), q_));
  EXPECT_FALSE(linear->bias().has_value());
}

TEST_F(LinearReaderTest, AMissingBiasIsNamed) {
  const auto linear = AddLinear(*reader_, "layer.", {{"bare"}}, BiasIf(true));
  EXPECT_EQ(linear.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(linear.status().message(), HasSubstr("layer.bare.bias"));
}

}  // namespace
}  // namespace reprise
