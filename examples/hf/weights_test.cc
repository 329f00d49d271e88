#include "reprise/hf/weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/safetensors_writer.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Of a model that has one layer.
struct Weights {
  at::Tensor norm;
  Linear qk;
  Linear out;
  std::optional<at::Tensor> extra = {};
};

absl::StatusOr<Weights> ReadWeights(WeightSource& source) {
  const LayerReader in(source, "layer.");
  const absl::StatusOr<at::Tensor> norm = in.Norm("norm.weight", 4);
  if (!norm.ok()) return norm.status();
  const absl::StatusOr<Linear> qk = in.Projection({{"q", 6}, {"k", 2}}, 4, LinearBias::kAdded);
  if (!qk.ok()) return qk.status();
  const absl::StatusOr<Linear> out = in.Projection({{"out", 4}}, 6, BiasIf(false));
  if (!out.ok()) return out.status();
  return Weights{.norm = *norm, .qk = *qk, .out = *out};
}

std::vector<NamedWeight> NamedWeights(const Weights& weights) {
  return {Named("norm", weights.norm), Named("qk", weights.qk), Named("out", weights.out),
          Named("extra", weights.extra)};
}

bool NoneIsUnused(const std::string&) { return false; }

// A checkpoint of random values that ReadWeights() can read.
class WeightsTest : public testing::Test {
 protected:
  WeightsTest() : folder_(std::filesystem::path(testing::TempDir()) / "weights_test") {
    std::filesystem::create_directories(folder_);
    const auto expected = ListTensors(ReadWeights);
    CHECK(expected.ok()) << expected.status();
    for (const ExpectedTensor& tensor : *expected) {
      tensors_[tensor.name] = at::randn(tensor.shape);
    }
  }

  absl::StatusOr<Weights> Load() const {
    std::vector<TensorToWrite> views;
    for (const auto& [name, tensor] : tensors_) {
      views.push_back({name,
                       {.type = ToStoredType(*FromScalarType(tensor.scalar_type())),
                        .shape = tensor.sizes().vec(),
                        .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                  static_cast<size_t>(tensor.nbytes())}}});
    }
    CHECK(WriteSafetensors((folder_ / "model.safetensors").string(), views).ok());
    return LoadWeights(folder_.string(), {}, NoneIsUnused, ReadWeights);
  }

  const std::filesystem::path folder_;
  std::map<std::string, at::Tensor> tensors_;
};

TEST_F(WeightsTest, TensorsAreListedInTheOrderInWhichTheyAreAskedFor) {
  const auto tensors = ListTensors(ReadWeights);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  std::string list;
  for (const ExpectedTensor& tensor : *tensors) {
    list += tensor.name + " " + ShapeString(tensor.shape) + "; ";
  }
  EXPECT_EQ(list,
            "layer.norm.weight [4]; layer.q.weight [6, 4]; layer.k.weight [2, 4]; "
            "layer.q.bias [6]; layer.k.bias [2]; layer.out.weight [4, 6]; ");
}

TEST_F(WeightsTest, PartsAreSideBySideWithTheirBiases) {
  const auto weights = Load();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(at::equal(weights->qk.weight(),
                        at::cat({tensors_["layer.q.weight"], tensors_["layer.k.weight"]})));
  ASSERT_TRUE(weights->qk.bias().has_value());
  EXPECT_TRUE(at::equal(*weights->qk.bias(),
                        at::cat({tensors_["layer.q.bias"], tensors_["layer.k.bias"]})));
  EXPECT_TRUE(at::equal(weights->out.weight(), tensors_["layer.out.weight"]));
  EXPECT_FALSE(weights->out.bias().has_value());
  EXPECT_TRUE(at::equal(weights->norm, tensors_["layer.norm.weight"]));
}

TEST_F(WeightsTest, ACheckpointThatDoesNotFitIsRefusedWithItsFolder) {
  tensors_.erase("layer.k.bias");
  tensors_["layer.norm.weight"] = at::zeros({5});
  tensors_["layer.out.bias"] = at::zeros({4});
  const absl::Status status = Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(StartsWith(folder_.string()), HasSubstr("missing tensors: layer.k.bias"),
                    HasSubstr("unknown tensors: layer.out.bias"),
                    HasSubstr("wrong tensors: layer.norm.weight must be [4], got [5]")));
}

std::string ErrorOf(const TensorViews& tensors) {
  const auto expected = ListTensors(ReadWeights);
  return std::string(CheckTensors(*expected, tensors, NoneIsUnused).message());
}

TEST(CheckTensorsTest, MessagesAreShortHoweverManyTensorsAndHoweverLongTheirNames) {
  TensorViews many;
  for (int i = 100; i < 985; ++i) {
    many["model.layers.0.mlp.experts." + std::to_string(i) + ".weight_scale_inv"] = {.shape = {1},
                                                                                     .bytes = {}};
  }
  EXPECT_LE(ErrorOf(many).size(), 260u);
  EXPECT_THAT(ErrorOf(many),
              AllOf(HasSubstr("missing tensors: layer.norm.weight"),
                    HasSubstr("unknown tensors: model.layers.0.mlp.experts.100.weight_scale_inv"),
                    HasSubstr(" and 884 more")));
  EXPECT_LE(ErrorOf({{std::string(5000, 'x'), {.shape = {1}, .bytes = {}}}}).size(), 260u);
  EXPECT_THAT(ErrorOf({{std::string(5000, 'x'), {.shape = {1}, .bytes = {}}}}),
              HasSubstr("unknown tensors: xxx"));
}

TEST(CheckTensorsTest, MatricesThatMayNotHave8BitsAreRefusedByThatReason) {
  std::vector<ExpectedTensor> expected;
  TensorViews tensors;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "model.layers.0.mlp.experts." + std::to_string(i) + ".up_proj.weight";
    expected.push_back({name, {4, 4}});
    tensors[name] = {.type = StoredType::kFp8E4M3, .shape = {4, 4}, .bytes = {}};
    tensors[name + "_scale_inv"] = {.shape = {1, 1}, .bytes = {}};
  }
  const std::string error(CheckTensors(expected, tensors, NoneIsUnused).message());
  EXPECT_THAT(error, AllOf(HasSubstr("experts of 8 bits are not supported, got F8_E4M3"),
                           HasSubstr("experts.0.up_proj.weight must be"), HasSubstr(" and 99 more"),
                           testing::Not(HasSubstr("unknown"))));
  EXPECT_LE(error.size(), 260u);
}

TEST(CheckTensorsTest, ADuplicateOfAnExpectedTensorIsNotUnknown) {
  const float values[4] = {};
  const absl::Span<const char> bytes(reinterpret_cast<const char*>(values), sizeof(values));
  const TensorView view = {.type = StoredType::kFloat32, .shape = {4}, .bytes = bytes};
  const std::vector<ExpectedTensor> expected = {{"norm", {4}}};
  EXPECT_TRUE(CheckTensors(expected, {{"norm", view}, {"copy", view}}, NoneIsUnused).ok());
}

TEST(DecoderTensorsTest, PredictionLayersAreUnused) {
  const DecoderExtent extent = {.num_layers = 61, .num_prediction_layers = 1};
  for (const char* name : {"mtp.layers.0.norm.weight", "model.mtp.fc.weight",
                           "model.mtp_layers.0.norm.weight", "model.layers.61.eh_proj.weight"}) {
    EXPECT_TRUE(IsUnusedDecoderTensor(name, extent)) << name;
  }
  for (const char* name : {"model.layers.60.eh_proj.weight", "model.layers.62.norm.weight",
                           "model.layers.610.norm.weight", "lm_head.weight", "mtp"}) {
    EXPECT_FALSE(IsUnusedDecoderTensor(name, extent)) << name;
  }
  EXPECT_FALSE(IsUnusedDecoderTensor("model.layers.61.eh_proj.weight", {.num_layers = 61}));
}

TEST_F(WeightsTest, WeightsFromElsewhereMustHaveTheShapesThatAreAskedFor) {
  const auto shapes = ShapesOf(ReadWeights);
  ASSERT_TRUE(shapes.ok()) << shapes.status();
  auto weights = Load();
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto error = [&] {
    return std::string(CheckWeights(NamedWeights(*shapes), NamedWeights(*weights)).message());
  };
  EXPECT_EQ(error(), "");
  weights->extra = at::zeros({3});
  EXPECT_EQ(error(), "extra must not be there, as the config does without: expected none, got [3]");
  weights->norm = at::zeros({4, 1});
  EXPECT_EQ(error(), "norm must be [4]: got [4, 1]");
  weights->norm = at::Tensor();
  EXPECT_EQ(error(), "norm must be [4]: got nothing");
}

}  // namespace
}  // namespace reprise
