#include "reprise/models/bart/bart_checkpoint.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "gtest/gtest.h"
#include "reprise/hf/safetensors_writer.h"
#include "reprise/hf/tensor_view.h"
#include "reprise/models/bart/bart_weights.h"

namespace reprise {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

at::Tensor RandomValues(const ExpectedTensor& expected, std::mt19937& random) {
  const bool is_norm = absl::StrContains(expected.name, "norm");
  const bool is_matrix = expected.shape.size() == 2 && expected.shape[0] > 1;
  const double deviation = is_matrix ? 1 / std::sqrt(static_cast<double>(expected.shape[1])) : 0.3;
  const double mean = is_norm && absl::EndsWith(expected.name, ".weight") ? 1 : 0;
  std::normal_distribution<float> normal(static_cast<float>(mean), static_cast<float>(deviation));
  const at::Tensor values = at::zeros(expected.shape);
  for (int64_t i = 0; i < values.numel(); ++i) values.data_ptr<float>()[i] = normal(random);
  return values;
}

}  // namespace

BartCheckpoint::BartCheckpoint(const std::string& name, const BartConfig& config)
    : config_(config), folder_((std::filesystem::path(testing::TempDir()) / name).string()) {
  std::filesystem::create_directories(folder_);
  std::mt19937 random(1);
  for (const ExpectedTensor& expected : BartTensors(config)) {
    tensors_[expected.name] = RandomValues(expected, random);
  }
  Write();
}

void BartCheckpoint::Write() const {
  std::vector<TensorToWrite> views;
  for (const auto& [name, tensor] : tensors_) {
    views.push_back({name,
                     {.type = StoredType::kFloat32,
                      .shape = tensor.sizes().vec(),
                      .bytes = {static_cast<const char*>(tensor.const_data_ptr()),
                                static_cast<size_t>(tensor.nbytes())}}});
  }
  const absl::Status status = WriteSafetensors(folder_ + "/model.safetensors", views);
  CHECK(status.ok()) << status;
}

at::Tensor BartCheckpoint::Double(const std::string& name) const {
  return tensors_.at(name).to(at::kDouble);
}

at::Tensor BartCheckpoint::Project(const at::Tensor& x, const std::string& name) const {
  return at::matmul(x, Double(name + ".weight").t()) + Double(name + ".bias");
}

at::Tensor BartCheckpoint::Norm(const at::Tensor& x, const std::string& name) const {
  const at::Tensor centred = x - x.mean(-1, /*keepdim=*/true);
  const at::Tensor deviation = (centred.square().mean(-1, /*keepdim=*/true) + 1e-5).sqrt();
  return centred / deviation * Double(name + ".weight") + Double(name + ".bias");
}

at::Tensor BartCheckpoint::Embed(absl::Span<const int32_t> tokens, const std::string& stack) const {
  const int64_t n = static_cast<int64_t>(tokens.size());
  const at::Tensor ids = at::tensor(at::ArrayRef<int32_t>(tokens.data(), tokens.size()), at::kInt);
  at::Tensor x = Double("model.shared.weight").index_select(0, ids);
  if (config_.scale_embedding) x = x * std::sqrt(static_cast<double>(config_.d_model));
  x = x + Double(stack + "embed_positions.weight").narrow(0, 2, n);
  return Norm(x, stack + "layernorm_embedding");
}

at::Tensor BartCheckpoint::Attend(const at::Tensor& x, const at::Tensor& keys_from,
                                  const at::Tensor& mask, int num_heads,
                                  const std::string& name) const {
  const auto heads = [&](const at::Tensor& from, const char* projection) {
    return Project(from, name + projection).view({from.size(0), num_heads, -1}).transpose(0, 1);
  };
  const at::Tensor q = heads(x, ".q_proj") / std::sqrt(static_cast<double>(x.size(1) / num_heads));
  const at::Tensor scores = at::matmul(q, heads(keys_from, ".k_proj").transpose(1, 2)) + mask;
  const at::Tensor attended = at::matmul(at::softmax(scores, -1), heads(keys_from, ".v_proj"));
  const at::Tensor flat = attended.transpose(0, 1).reshape({x.size(0), -1});
  return Norm(x + Project(flat, name + ".out_proj"), name + "_layer_norm");
}

at::Tensor BartCheckpoint::FeedForward(const at::Tensor& x, const std::string& layer) const {
  const at::Tensor inner = Project(x, layer + "fc1");
  const at::Tensor activated = inner / 2 * (1 + at::erf(inner / std::sqrt(2.0)));
  return Norm(x + Project(activated, layer + "fc2"), layer + "final_layer_norm");
}

at::Tensor BartCheckpoint::DenseLogits(absl::Span<const int32_t> encoder_tokens,
                                       absl::Span<const int32_t> tokens) const {
  const at::Tensor all = at::zeros({1, 1}, at::kDouble);
  at::Tensor encoded = Embed(encoder_tokens, "model.encoder.");
  for (int i = 0; i < config_.encoder.num_layers; ++i) {
    const std::string layer = absl::StrCat("model.encoder.layers.", i, ".");
    encoded = Attend(encoded, encoded, all, config_.encoder.num_heads, layer + "self_attn");
    encoded = FeedForward(encoded, layer);
  }
  const int64_t n = static_cast<int64_t>(tokens.size());
  const at::Tensor causal = at::full({n, n}, -kInfinity, at::kDouble).triu(1);
  at::Tensor x = Embed(tokens, "model.decoder.");
  for (int i = 0; i < config_.decoder.num_layers; ++i) {
    const std::string layer = absl::StrCat("model.decoder.layers.", i, ".");
    x = Attend(x, x, causal, config_.decoder.num_heads, layer + "self_attn");
    x = Attend(x, encoded, all, config_.decoder.num_heads, layer + "encoder_attn");
    x = FeedForward(x, layer);
  }
  return at::matmul(x, Double("model.shared.weight").t()) + Double("final_logits_bias");
}

}  // namespace reprise
