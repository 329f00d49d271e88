#include "examples/llama/llama_tensors.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "examples/llama/tensor_view.h"

namespace reprise {
namespace {

// Tensors of each kind that a message names.
constexpr size_t kMaxNamed = 5;

void AppendProblem(const char* what, const std::vector<std::string>& names,
                   std::vector<std::string>& problems) {
  if (names.empty()) return;
  const size_t num_named = std::min(names.size(), kMaxNamed);
  std::string problem =
      absl::StrCat(what, ": ", absl::StrJoin(names.begin(), names.begin() + num_named, ", "));
  if (names.size() > num_named) {
    absl::StrAppend(&problem, " and ", names.size() - num_named, " more");
  }
  problems.push_back(std::move(problem));
}

bool IsUnusedButKnown(const LlamaConfig& config, const std::string& name) {
  return absl::EndsWith(name, ".rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == kLmHeadTensor);
}

}  // namespace

std::string LayerTensorName(int layer, std::string_view name) {
  return absl::StrCat("model.layers.", layer, ".", absl::string_view(name.data(), name.size()));
}

LayerNames LayerNamesOf(const LlamaConfig& config) {
  LayerNames names;
  if (config.architecture == Architecture::kLlama4) names.mlp = "feed_forward";
  if (config.norm_placement == NormPlacement::kBeforeAndAfter) {
    names.attention_output_norm = "post_attention_layernorm.weight";
    names.mlp_norm = "pre_feedforward_layernorm.weight";
    names.mlp_output_norm = "post_feedforward_layernorm.weight";
  }
  return names;
}

std::vector<ExpectedTensor> LlamaTensors(const LlamaConfig& config) {
  const LayerNames names = LayerNamesOf(config);
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.intermediate_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  std::vector<ExpectedTensor> tensors = {{kEmbeddingTensor, {config.vocab_size, hidden}}};
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
      tensors.push_back({LayerTensorName(layer, name), std::move(shape)});
    };
    const auto add_projection = [&](const std::string& name, int64_t out, int64_t in, bool biased) {
      add(name + ".weight", {out, in});
      if (biased) add(name + ".bias", {out});
    };
    add_projection("self_attn.q_proj", q_size, hidden, config.qkv_bias);
    add_projection("self_attn.k_proj", kv_size, hidden, config.qkv_bias);
    add_projection("self_attn.v_proj", kv_size, hidden, config.qkv_bias);
    if (config.qk_norm == QkNorm::kWeighted) {
      add("self_attn.q_norm.weight", {config.head_dim});
      add("self_attn.k_norm.weight", {config.head_dim});
    }
    add_projection("self_attn.o_proj", hidden, q_size, config.o_bias);
    add_projection(names.mlp + ".gate_proj", inner, hidden, config.mlp_bias);
    add_projection(names.mlp + ".up_proj", inner, hidden, config.mlp_bias);
    add_projection(names.mlp + ".down_proj", hidden, inner, config.mlp_bias);
    for (const std::string& norm :
         {names.input_norm, names.attention_output_norm, names.mlp_norm, names.mlp_output_norm}) {
      if (!norm.empty()) add(norm, {hidden});
    }
  }
  tensors.push_back({kFinalNormTensor, {hidden}});
  if (!config.tie_word_embeddings) tensors.push_back({kLmHeadTensor, {config.vocab_size, hidden}});
  return tensors;
}

absl::Status CheckTensors(const std::vector<ExpectedTensor>& all_expected,
                          const TensorViews& tensors,
                          absl::FunctionRef<bool(const std::string& name)> is_unused) {
  std::vector<std::string> missing;
  std::vector<std::string> wrong;
  std::set<std::string> expected_names;
  for (const ExpectedTensor& expected : all_expected) {
    expected_names.insert(expected.name);
    const auto found = tensors.find(expected.name);
    if (found == tensors.end()) {
      missing.push_back(expected.name);
      continue;
    }
    const TensorView& tensor = found->second;
    if (tensor.shape != expected.shape) {
      wrong.push_back(absl::StrCat(expected.name, " must be ", ShapeString(expected.shape),
                                   ", got ", ShapeString(tensor.shape)));
    } else if (!ToDType(tensor.type).has_value() || IsFp8(*ToDType(tensor.type))) {
      wrong.push_back(absl::StrCat(expected.name, " must be of 16, 32 or 64 bit floats, got ",
                                   std::string(StoredTypeName(tensor.type))));
    }
  }
  std::vector<std::string> unknown;
  for (const auto& [name, tensor] : tensors) {
    if (!expected_names.contains(name) && !is_unused(name)) unknown.push_back(name);
  }
  std::vector<std::string> problems;
  AppendProblem("missing tensors", missing, problems);
  AppendProblem("unknown tensors", unknown, problems);
  AppendProblem("wrong tensors", wrong, problems);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the checkpoint does not fit its config.json: ", absl::StrJoin(problems, "; ")));
}

absl::Status CheckLlamaTensors(const LlamaConfig& config, const TensorViews& tensors) {
  return CheckTensors(LlamaTensors(config), tensors,
                      [&](const std::string& name) { return IsUnusedButKnown(config, name); });
}

}  // namespace reprise
