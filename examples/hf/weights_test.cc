#include "reprise/hf/weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/tensor_names.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
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
                           Not(HasSubstr("unknown"))));
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
                           "model.layers.610.norm.weight", "lm_head.weight", "mtp",
                           "model.layers.61", "model.layers..norm.weight", "model.layers.-1.norm",
                           "model.layers.99999999999.norm", "model.layers."}) {
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

// Checkpoints whose decoder is a part of a larger model, under the prefixes of each form.
struct WrappedWeights {
  at::Tensor embedding;
  Linear product;
  StoredKvScales kv_scales;
  at::Tensor norm;
  at::Tensor head;
};

absl::StatusOr<WrappedWeights> ReadWrappedWeights(WeightSource& source) {
  const LayerReader in(source, "");
  const LayerReader layer(source, DecoderLayerPrefix(0));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding, in.Matrix("model.embed_tokens.weight", {5, 4}));
  REPRISE_ASSIGN_OR_RETURN(Linear product, layer.Projection({{"q", 6}}, 4, LinearBias::kNone));
  REPRISE_ASSIGN_OR_RETURN(const StoredKvScales kv_scales, layer.KvScales());
  REPRISE_ASSIGN_OR_RETURN(at::Tensor norm, in.Norm("model.norm.weight", 4));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor head, in.Matrix("lm_head.weight", {5, 4}));
  return WrappedWeights{.embedding = std::move(embedding),
                        .product = std::move(product),
                        .kv_scales = kv_scales,
                        .norm = std::move(norm),
                        .head = std::move(head)};
}

bool IsUnusedTensorOfDecoder(const std::string& name) {
  return IsAttentionScale(name) || IsUnusedDecoderTensor(name, {.num_layers = 1});
}

struct Form {
  const char* model;
  const char* head;
};
constexpr Form kForms[] = {{"language_model.model.", "language_model.lm_head."},
                           {"language_model.model.", "lm_head."},
                           {"model.language_model.", "lm_head."},
                           {"language_model.", "language_model.lm_head."},
                           {"language_model.", "lm_head."},
                           {"model.", "lm_head."}};

// A wrapped checkpoint of random values.
class WrappedWeightsTest : public testing::Test {
 protected:
  WrappedWeightsTest()
      : folder_(std::filesystem::path(testing::TempDir()) / "wrapped_weights_test") {
    std::filesystem::create_directories(folder_);
    SetForm(kForms[0]);
  }

  void SetForm(const Form& form) {
    tensors_.clear();
    const std::string model = form.model;
    tensors_[model + "embed_tokens.weight"] = embedding_;
    tensors_[model + "layers.0.q.weight"] = product_;
    tensors_[model + "norm.weight"] = norm_;
    tensors_[std::string(form.head) + "weight"] = head_;
  }

  absl::StatusOr<WrappedWeights> Load(TensorNames names = TensorNames::kWrapped) const {
    std::vector<TensorToWrite> views;
    for (const auto& [name, tensor] : tensors_) {
      views.push_back({name,
                       {.type = tensor.scalar_type() == at::kLong
                                    ? StoredType::kInt64
                                    : ToStoredType(*FromScalarType(tensor.scalar_type())),
                        .shape = tensor.sizes().vec(),
                        .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                  static_cast<size_t>(tensor.nbytes())}}});
    }
    CHECK(WriteSafetensors((folder_ / "model.safetensors").string(), views).ok());
    return LoadWeights(folder_.string(), {}, IsUnusedTensorOfDecoder, ReadWrappedWeights, names);
  }

  std::string Error() const {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    const std::string message(status.message());
    EXPECT_TRUE(message.starts_with(folder_.string() + ": ")) << message;
    EXPECT_LE(message.size(), folder_.string().size() + 2 + 260);
    return message;
  }

  const std::filesystem::path folder_;
  const at::Tensor embedding_ = at::randn({5, 4});
  const at::Tensor product_ = at::randn({6, 4});
  const at::Tensor norm_ = at::randn({4});
  const at::Tensor head_ = at::randn({5, 4});
  std::map<std::string, at::Tensor> tensors_;
};

TEST_F(WrappedWeightsTest, FindsTheDecoderInEachFormAndSkipsOtherModalities) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(testing::Message() << form.model << " " << form.head);
    SetForm(form);
    for (const char* name :
         {"vision_tower.ln_pre.weight", "model.vision_tower.std_bias",
          "vision_model.class_embedding", "multi_modal_projector.linear_1.weight",
          "model.multi_modal_projector.norm.weight", "visual.pos_embed.weight",
          "model.visual.merger.norm.bias", "model.embed_vision.embedding_projection.weight",
          "model.audio_tower.layers.0.norm.weight", "model.vision_embed_tokens.weight",
          "model.image_newline", "mtp.fc.weight"}) {
      tensors_[name] = at::zeros({2});
    }
    tensors_["vision_tower.position_ids"] = at::arange(3);
    const auto weights = Load();
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_TRUE(at::equal(weights->embedding, embedding_));
    EXPECT_TRUE(at::equal(weights->product.weight(), product_));
    EXPECT_TRUE(at::equal(weights->norm, norm_));
    EXPECT_TRUE(at::equal(weights->head, head_));
  }
}

TEST_F(WrappedWeightsTest, ScalesAreBesideTheirWeights) {
  for (const Form& form : kForms) {
    SCOPED_TRACE(testing::Message() << form.model << " " << form.head);
    SetForm(form);
    const std::string layer = std::string(form.model) + "layers.0.";
    tensors_[layer + "q.weight"] = product_.to(at::ScalarType::Float8_e4m3fn);
    tensors_[layer + "q.weight_scale"] = at::rand({6, 1});
    tensors_[layer + "q.input_scale"] = at::full({1}, 0.5);
    tensors_[layer + "self_attn.k_scale"] = at::full({1}, 0.25f);
    const auto weights = Load();
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_TRUE(at::equal(weights->product.Dequantised(at::kDouble),
                          tensors_[layer + "q.weight"].to(at::kDouble) *
                              tensors_[layer + "q.weight_scale"].to(at::kDouble)));
    EXPECT_EQ(weights->kv_scales.k, 0.25f);
    EXPECT_EQ(weights->kv_scales.v, std::nullopt);

    tensors_.erase(layer + "q.weight_scale");
    EXPECT_THAT(Error(), HasSubstr("wrong tensors: " + layer + "q.weight is of 8 bits"));
  }
}

TEST_F(WrappedWeightsTest, MessagesHaveThePublishedNames) {
  tensors_.erase("language_model.model.norm.weight");
  tensors_["language_model.model.embed_tokens.weight"] = at::zeros({6, 4});
  tensors_["language_model.model.other"] = at::zeros({1});
  EXPECT_THAT(Error(), AllOf(HasSubstr("missing tensors: language_model.model.norm.weight"),
                             HasSubstr("unknown tensors: language_model.model.other"),
                             HasSubstr("language_model.model.embed_tokens.weight must be [5, 4]")));
  SetForm(kForms[2]);
  tensors_.erase("lm_head.weight");
  tensors_.erase("model.language_model.norm.weight");
  EXPECT_THAT(Error(), HasSubstr("missing tensors: model.language_model.norm.weight, lm_head."));
  // Without any tensor of the decoder.
  tensors_ = {{"vision_tower.x", at::zeros({1})}};
  EXPECT_THAT(Error(), HasSubstr("missing tensors: language_model.model.embed_tokens.weight"));
}

TEST_F(WrappedWeightsTest, RejectsTwoFormsInOneFile) {
  tensors_["model.language_model.layers.1.q.weight"] = at::zeros({6, 4});
  EXPECT_THAT(Error(), HasSubstr("must have one prefix: expected \"language_model.model.\" or "
                                 "\"model.language_model.\", got both"));
  SetForm(kForms[2]);
  tensors_["model.embed_tokens.weight"] = embedding_;
  EXPECT_THAT(Error(), HasSubstr("expected \"model.language_model.\" or \"model.\", got both"));
  EXPECT_LE(Error().size(), 300 + folder_.string().size());
}

TEST_F(WrappedWeightsTest, RejectsASecondTensorOfOneName) {
  // Of another value than the first. With the same bytes it would be a duplicate.
  tensors_["lm_head.weight"] = at::zeros({5, 4});
  EXPECT_THAT(Error(), HasSubstr("unknown tensors: lm_head.weight"));
  SetForm(kForms[2]);
  tensors_["model.norm.weight"] = at::zeros({4});
  EXPECT_THAT(Error(), HasSubstr("unknown tensors: model.norm.weight"));
}

TEST_F(WrappedWeightsTest, RejectsNamesThatOnlyResembleOtherModalities) {
  for (const char* name : {"visualise.weight", "vision_tower", "model.model.visual.x",
                           "language_model.visual.weight", "model.vision.x"}) {
    SetForm(kForms[0]);
    tensors_[name] = at::zeros({1});
    EXPECT_THAT(Error(), HasSubstr(std::string("unknown tensors: ") + name));
  }
}

TEST_F(WrappedWeightsTest, RejectsWrappedNamesInAPlainCheckpoint) {
  EXPECT_THAT(std::string(Load(TensorNames::kPlain).status().message()),
              AllOf(HasSubstr("missing tensors: model.embed_tokens.weight"),
                    HasSubstr("unknown tensors: language_model.")));
  SetForm(kForms[5]);
  EXPECT_TRUE(Load(TensorNames::kPlain).ok());
  tensors_["visual.x"] = at::zeros({1});
  EXPECT_THAT(std::string(Load(TensorNames::kPlain).status().message()),
              AllOf(HasSubstr("unknown tensors: visual.x"), Not(HasSubstr("missing"))));
}

TEST_F(WrappedWeightsTest, ChecksTensorsByTheirPublishedNames) {
  const auto expected = ListTensors(ReadWrappedWeights);
  ASSERT_TRUE(expected.ok()) << expected.status();
  TensorViews views;
  for (const ExpectedTensor& tensor : *expected) {
    std::string name = tensor.name;
    if (name.starts_with("model.")) name.insert(6, "language_model.");
    views[name] = {.shape = tensor.shape, .bytes = {}};
  }
  EXPECT_TRUE(CheckTensors(*expected, views, IsUnusedTensorOfDecoder, TensorNames::kWrapped).ok());
  EXPECT_FALSE(CheckTensors(*expected, views, IsUnusedTensorOfDecoder).ok());
}

}  // namespace
}  // namespace reprise
