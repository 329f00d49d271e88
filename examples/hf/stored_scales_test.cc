#include "reprise/hf/stored_scales.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>

#include <deque>
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
#include "reprise/distributed/share.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/weights.h"

namespace reprise {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kIn = 300;  // three groups, the last of them partial
constexpr int64_t kRows = 200;

struct Weights {
  at::Tensor norm;
  Linear qkv;
  Linear out;
};

struct Reading {
  std::optional<Share> rows = {};
  std::optional<Share> columns = {};
  std::optional<int> unzipped_head = {};
};

// q, k and v of kRows each, side by side, and a product of their own.
absl::StatusOr<Weights> ReadWeights(const Reading& reading, WeightSource& source) {
  const LayerReader in(source, "layer.");
  REPRISE_ASSIGN_OR_RETURN(at::Tensor norm, in.Norm("norm.weight", 4));
  std::vector<WeightPart> parts;
  for (const char* name : {"q", "k", "v"}) {
    parts.push_back({.name = name,
                     .num_rows = kRows,
                     .unzipped_head = reading.unzipped_head,
                     .share = reading.rows});
  }
  REPRISE_ASSIGN_OR_RETURN(Linear qkv, in.Projection(parts, kIn, LinearBias::kNone));
  REPRISE_ASSIGN_OR_RETURN(
      Linear out, in.SummedProjection("out", kRows, kIn, reading.columns.value_or(Share{0, kIn}),
                                      LinearBias::kNone));
  return Weights{.norm = std::move(norm), .qkv = std::move(qkv), .out = std::move(out)};
}

class StoredScalesTest : public testing::Test {
 protected:
  StoredScalesTest() : folder_(std::filesystem::path(testing::TempDir()) / "stored_scales_test") {
    std::filesystem::create_directories(folder_);
    tensors_["layer.norm.weight"] = at::randn({4});
    for (const char* name : {"q", "k", "v", "out"}) {
      tensors_[std::string("layer.") + name + ".weight"] =
          at::randn({kRows, kIn}).to(at::ScalarType::Float8_e4m3fn);
    }
    // Each form once.
    tensors_["layer.q.weight_scale"] = at::rand({kRows, 1}).to(at::kBFloat16);
    tensors_["layer.k.weight_scale"] = at::full({1}, 0.37);
    tensors_["layer.v.weight_scale_inv"] = at::rand({2, 3});
    tensors_["layer.out.weight_scale_inv"] = at::rand({2, 3});
    tensors_["layer.q.input_scale"] = at::full({1}, 0.5);
  }

  absl::StatusOr<Weights> Load(const Reading& reading = {}) const {
    std::vector<TensorToWrite> views;
    for (const auto& [name, tensor] : tensors_) {
      views.push_back({name,
                       {.type = tensor.scalar_type() == at::kInt
                                    ? StoredType::kInt32
                                    : ToStoredType(*FromScalarType(tensor.scalar_type())),
                        .shape = tensor.sizes().vec(),
                        .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                  static_cast<size_t>(tensor.nbytes())}}});
    }
    CHECK(WriteSafetensors((folder_ / "model.safetensors").string(), views).ok());
    return LoadWeights(
        folder_.string(), {}, [](const std::string&) { return false; },
        [&](WeightSource& source) { return ReadWeights(reading, source); });
  }

  // [kRows, kIn] float64: what the checkpoint's values and scales stand for.
  at::Tensor Exact(const std::string& name) const {
    const std::string weight = "layer." + name + ".weight";
    const at::Tensor values = tensors_.at(weight).to(at::kDouble);
    for (const char* suffix : {"_scale", "_scale_inv"}) {
      const auto found = tensors_.find(weight + suffix);
      if (found == tensors_.end()) continue;
      const at::Tensor scales = found->second.to(at::kDouble);
      if (scales.numel() == 1) return values * scales.item<double>();
      if (scales.size(0) == kRows) return values * scales.view({kRows, 1});
      return values * scales.repeat_interleave(128, 0)
                          .narrow(0, 0, kRows)
                          .repeat_interleave(128, 1)
                          .narrow(1, 0, kIn);
    }
    return values;
  }

  std::string Error() const {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  const std::filesystem::path folder_;
  std::map<std::string, at::Tensor> tensors_;
};

TEST_F(StoredScalesTest, WeightsOfEightBitsStaySoWithTheirScales) {
  const auto weights = Load();
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->qkv.weight().scalar_type(), at::ScalarType::Float8_e4m3fn);
  ASSERT_TRUE(weights->qkv.scales().has_value());
  EXPECT_EQ(weights->qkv.scales()->sizes(), (at::IntArrayRef{3 * kRows, 3}));
  EXPECT_TRUE(at::equal(weights->qkv.Dequantised(at::kDouble),
                        at::cat({Exact("q"), Exact("k"), Exact("v")})));
  EXPECT_TRUE(at::equal(weights->out.Dequantised(at::kDouble), Exact("out")));
  EXPECT_TRUE(at::equal(weights->norm, tensors_["layer.norm.weight"]));

  // Without blocks a row has one scale. One for each row may be a vector, or named as an inverse.
  tensors_.erase("layer.v.weight_scale_inv");
  tensors_["layer.v.weight_scale_inv"] = at::rand({kRows});
  const auto by_rows = Load();
  ASSERT_TRUE(by_rows.ok()) << by_rows.status();
  EXPECT_EQ(by_rows->qkv.scales()->sizes(), (at::IntArrayRef{3 * kRows, 1}));
  EXPECT_TRUE(at::equal(by_rows->qkv.Dequantised(at::kDouble),
                        at::cat({Exact("q"), Exact("k"), Exact("v")})));
}

TEST_F(StoredScalesTest, RowsTakeTheirScalesAlong) {
  const auto weights = Load({.unzipped_head = 20});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto unzipped = [](const at::Tensor& weight) {
    const at::Tensor heads = weight.view({kRows / 20, 10, 2, kIn});
    return heads.transpose(1, 2).reshape({kRows, kIn});
  };
  EXPECT_TRUE(
      at::equal(weights->qkv.Dequantised(at::kDouble),
                at::cat({unzipped(Exact("q")), unzipped(Exact("k")), unzipped(Exact("v"))})));
}

TEST_F(StoredScalesTest, ARankReadsTheScalesOfItsShare) {
  const auto weights = Load({.rows = Share{100, 100}, .columns = Share{128, 172}});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto rows = [](const at::Tensor& weight) { return weight.narrow(0, 100, 100); };
  EXPECT_TRUE(at::equal(weights->qkv.Dequantised(at::kDouble),
                        at::cat({rows(Exact("q")), rows(Exact("k")), rows(Exact("v"))})));
  EXPECT_EQ(weights->out.scales()->sizes(), (at::IntArrayRef{kRows, 2}));
  EXPECT_TRUE(at::equal(weights->out.Dequantised(at::kDouble), Exact("out").narrow(1, 128, 172)));

  const absl::Status cut = Load({.columns = Share{100, 200}}).status();
  EXPECT_EQ(cut.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(cut.message()), HasSubstr("layer.out.weight must begin with a block"));
  // A scale for each row has no blocks that could be cut.
  tensors_.erase("layer.out.weight_scale_inv");
  tensors_["layer.out.weight_scale"] = at::rand({kRows, 1});
  const auto uncut = Load({.columns = Share{100, 200}});
  ASSERT_TRUE(uncut.ok()) << uncut.status();
  EXPECT_TRUE(at::equal(uncut->out.Dequantised(at::kDouble), Exact("out").narrow(1, 100, 200)));
}

TEST_F(StoredScalesTest, RefusesScalesThatDoNotFit) {
  const auto sound = tensors_;
  tensors_.erase("layer.k.weight_scale");
  EXPECT_THAT(Error(), AllOf(HasSubstr("layer.k.weight is of 8 bits"), HasSubstr("got neither")));

  tensors_ = sound;
  tensors_["layer.out.weight_scale_inv"] = at::rand({2, 2});
  EXPECT_THAT(Error(),
              AllOf(HasSubstr("scales of layer.out.weight must be [1], [200, 1] or [2, 3]"),
                    HasSubstr("got [2, 2]")));

  tensors_ = sound;
  tensors_["layer.k.weight_scale"] = at::full({1}, 2, at::kInt);
  EXPECT_THAT(Error(), HasSubstr("scales of layer.k.weight must be of 16, 32 or 64 bit floats"));

  // One product has one type.
  tensors_ = sound;
  tensors_.erase("layer.k.weight_scale");
  tensors_["layer.k.weight"] = at::randn({kRows, kIn});
  EXPECT_THAT(Error(),
              HasSubstr("layer.k.weight must be of fp8 (e4m3) like the weights beside it"));

  // What is no weight of a product has no scales; scales of what has 32 bits are unknown.
  tensors_ = sound;
  tensors_["layer.norm.weight"] = at::randn({4}).to(at::ScalarType::Float8_e4m3fn);
  EXPECT_THAT(Error(), HasSubstr("layer.norm.weight must be of 16, 32 or 64 bit floats"));
  tensors_ = sound;
  tensors_["layer.norm.weight_scale"] = at::full({1}, 2.0);
  EXPECT_THAT(Error(), HasSubstr("unknown tensors: layer.norm.weight_scale"));
}

class KvScalesTest : public testing::Test {
 protected:
  // Adds a float32 of the value, which is kept here.
  void Add(const std::string& name, float value, std::vector<int64_t> shape = {}) {
    values_.push_back(value);
    tensors_["model.layers.3.self_attn." + name] = {
        .type = StoredType::kFloat32,
        .shape = std::move(shape),
        .bytes = {reinterpret_cast<const char*>(&values_.back()), sizeof(float)}};
  }
  StoredKvScales Read(const std::string& layer = "model.layers.3.") const {
    const auto scales = ReadKvScales(tensors_, layer);
    CHECK(scales.ok()) << scales.status();
    return *scales;
  }

  std::deque<float> values_;
  TensorViews tensors_;
};

TEST_F(KvScalesTest, FindsScalesByAllOfTheirNames) {
  for (const auto& [k, v] : std::vector<std::pair<std::string, std::string>>{
           {"k_scale", "v_scale"},
           {"attn.k_scale", "attn.v_scale"},
           {"k_proj.k_scale", "v_proj.v_scale"},
           {"k_proj.output_scale", "v_proj.output_scale"}}) {
    tensors_.clear();
    Add(k, 0.125f);
    Add(v, 0.5f, {1});
    EXPECT_EQ(Read().k, 0.125f) << k;
    EXPECT_EQ(Read().v, 0.5f) << v;
    for (const auto& [name, view] : tensors_) EXPECT_TRUE(IsAttentionScale(name)) << name;
  }
  tensors_.clear();
  Add("kv_scale", 0.25f);
  EXPECT_EQ(Read().k, 0.25f);
  EXPECT_EQ(Read().v, 0.25f);
  EXPECT_EQ(Read("model.layers.30.").k, std::nullopt);
  EXPECT_EQ(Read("model.layers.3").v, std::nullopt);
}

TEST_F(KvScalesTest, RejectsTensorsOfSeveralElementsOrOfIntegers) {
  constexpr float kTwo[2] = {1, 1};
  Add("k_scale", 1, {2});
  tensors_.begin()->second.bytes = {reinterpret_cast<const char*>(kTwo), sizeof(kTwo)};
  EXPECT_THAT(std::string(ReadKvScales(tensors_, "model.layers.3.").status().message()),
              HasSubstr("self_attn.k_scale must be one scale, a 16, 32 or 64 bit float, got F32 "
                        "[2]"));
  tensors_.begin()->second = {
      .type = StoredType::kInt8, .shape = {}, .bytes = {reinterpret_cast<const char*>(kTwo), 1}};
  EXPECT_THAT(std::string(ReadKvScales(tensors_, "model.layers.3.").status().message()),
              HasSubstr("got I8 []"));
}

TEST(AttentionScaleTest, ExcludesOtherTensorsOfAttention) {
  EXPECT_TRUE(IsAttentionScale("model.layers.0.self_attn.q_scale"));
  EXPECT_TRUE(IsAttentionScale("model.layers.0.self_attn.prob_scale"));
  EXPECT_TRUE(IsAttentionScale("model.layers.0.self_attn.q_proj.output_scale"));
  for (const char* name :
       {"model.layers.0.self_attn.k_proj.weight_scale", "model.layers.0.self_attn.k_norm.weight",
        "k_scale", "model.layers.0.mlp.k_scale", "model.layers.0.self_attn.x.k_scale"}) {
    EXPECT_FALSE(IsAttentionScale(name)) << name;
  }
}

}  // namespace
}  // namespace reprise
