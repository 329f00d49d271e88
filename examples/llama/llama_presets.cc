#include "examples/llama/llama_presets.h"

#include <array>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "examples/llama/rope_frequencies.h"

namespace reprise {
namespace {

struct Preset {
  const char* name;
  LlamaConfig config;
};

// Both of the published ones: 128 k tokens of vocabulary and of context, theta 500,000.
LlamaConfig Llama3(double rope_factor) {
  LlamaConfig config;
  config.num_kv_heads = 8;
  config.num_q_heads = 32;
  config.vocab_size = 128256;
  config.max_seq_len = 131072;
  config.rms_norm_eps = 1e-5;
  config.rope.theta = 500000;
  config.rope.scaling = Llama3Rope{.factor = rope_factor,
                                   .low_freq_factor = 1,
                                   .high_freq_factor = 4,
                                   .original_max_seq_len = 8192};
  config.dtype = DType::kBFloat16;
  config.bos_token_id = 128000;
  config.eos_token_ids = {128001};
  return config;
}

LlamaConfig Llama31With8B() {
  LlamaConfig config = Llama3(/*rope_factor=*/8);
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_layers = 32;
  config.head_dim = 128;
  return config;
}

LlamaConfig Llama32With1B() {
  LlamaConfig config = Llama3(/*rope_factor=*/32);
  config.hidden_size = 2048;
  config.intermediate_size = 8192;
  config.num_layers = 16;
  config.head_dim = 64;
  config.tie_word_embeddings = true;
  return config;
}

LlamaConfig Jargon() {
  LlamaConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 768;
  config.num_layers = 6;
  config.num_q_heads = 8;
  config.num_kv_heads = 2;
  config.head_dim = 64;
  config.vocab_size = 4096;
  config.max_seq_len = 2048;
  config.rms_norm_eps = 1e-5;
  config.tie_word_embeddings = true;
  config.dtype = DType::kBFloat16;
  config.bos_token_id = 0;
  config.eos_token_ids = {1};
  return config;
}

}  // namespace

absl::StatusOr<LlamaConfig> LlamaPreset(std::string_view name) {
  const std::array<Preset, 3> presets = {
      {{"llama-3.1-8b", Llama31With8B()}, {"llama-3.2-1b", Llama32With1B()}, {"jargon", Jargon()}}};
  std::vector<std::string> names;
  for (const Preset& preset : presets) {
    if (name == preset.name) return preset.config;
    names.push_back(preset.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("preset: expected ", absl::StrJoin(names, ", "), ", got ", std::string(name)));
}

}  // namespace reprise
