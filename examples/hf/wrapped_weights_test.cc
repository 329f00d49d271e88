// Checkpoints whose decoder is a part of a larger model, under the prefixes of each form.

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "glog/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/tensor_names.h"
#include "reprise/hf/weights.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Weights {
  at::Tensor embedding;
  Linear product;
  StoredKvScales kv_scales;
  at::Tensor norm;
  at::Tensor head;
};

absl::StatusOr<Weights> ReadWeights(WeightSource& source) {
  const LayerReader in(source, "");
  const LayerReader layer(source, DecoderLayerPrefix(0));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor embedding, in.Matrix("model.embed_tokens.weight", {5, 4}));
  REPRISE_ASSIGN_OR_RETURN(Linear product, layer.Projection({{"q", 6}}, 4, LinearBias::kNone));
  REPRISE_ASSIGN_OR_RETURN(const StoredKvScales kv_scales, layer.KvScales());
  REPRISE_ASSIGN_OR_RETURN(at::Tensor norm, in.Norm("model.norm.weight", 4));
  REPRISE_ASSIGN_OR_RETURN(at::Tensor head, in.Matrix("lm_head.weight", {5, 4}));
  return Weights{.embedding = std::move(embedding),
                 .product = std::move(product),
                 .kv_scales = kv_scales,
                 .norm = std::move(norm),
                 .head = std::move(head)};
}

bool IsUnused(const std::string& name) {
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

  absl::StatusOr<Weights> Load(TensorNames names = TensorNames::kWrapped) const {
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
    return LoadWeights(folder_.string(), {}, IsUnused, ReadWeights, names);
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
  const auto expected = ListTensors(ReadWeights);
  ASSERT_TRUE(expected.ok()) << expected.status();
  TensorViews views;
  for (const ExpectedTensor& tensor : *expected) {
    std::string name = tensor.name;
    if (name.starts_with("model.")) name.insert(6, "language_model.");
    views[name] = {.shape = tensor.shape, .bytes = {}};
  }
  EXPECT_TRUE(CheckTensors(*expected, views, IsUnused, TensorNames::kWrapped).ok());
  EXPECT_FALSE(CheckTensors(*expected, views, IsUnused).ok());
}

}  // namespace
}  // namespace reprise
