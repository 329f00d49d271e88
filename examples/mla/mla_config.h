// What config.json says about a decoder of DeepSeek-V2's kind: multi-head latent attention (MLA;
// DeepSeek-AI, 2024) and a gated feed-forward.
//
//   REPRISE_ASSIGN_OR_RETURN(MlaConfig config, LoadMlaConfig("models/deepseek-small"));
//
// A token's keys and values of all heads come from one latent of kv_lora_rank elements, beside
// which a key of qk_rope_head_dim elements is rotated and shared by all heads. That latent and that
// key are all that is cached.
//
// Every number is checked here; what would change the results and is not implemented (mixtures of
// experts, quantised weights) is refused by name. Thread safety: pure functions.

#ifndef EXAMPLES_MLA_MLA_CONFIG_H_
#define EXAMPLES_MLA_MLA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "examples/llama/rope_frequencies.h"
#include "nlohmann/json.hpp"

namespace reprise {

struct MlaConfig {
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  std::optional<int> q_lora_rank;  // nothing: queries are projected at once
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;  // of q and k, not rotated
  int qk_rope_head_dim = 0;  // of q and k, rotated; even
  int v_head_dim = 0;
  int vocab_size = 0;
  int max_seq_len = 0;
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;  // on the projections to latents, and on attention's output
  bool mlp_bias = false;
  RopeConfig rope;
  double attention_scale = 0;  // 1 / sqrt(qk_head_dim), times YaRN's square of its mscale_all_dim's
  std::optional<DType> dtype;  // of the weights; nothing if the file does not say
  // Generation ends at any of these; ascending, none twice, perhaps none at all.
  std::vector<int32_t> eos_token_ids;

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
};

// Whether config.json says that it is of such a model, sound or not.
bool IsMlaConfig(const nlohmann::json& config);

// Errors: InvalidArgument, naming the field, what was expected and what was got.
absl::StatusOr<MlaConfig> ParseMlaConfig(const nlohmann::json& config);

// `config` with the end tokens of a generation_config.json added to its own. Errors: as above.
absl::StatusOr<MlaConfig> WithGenerationConfig(MlaConfig config,
                                               const nlohmann::json& generation_config);

// Reads <folder>/config.json and, if it exists, <folder>/generation_config.json. Errors: those of
// ReadJsonFile() and of the functions above, naming the file.
absl::StatusOr<MlaConfig> LoadMlaConfig(const std::string& folder);

}  // namespace reprise

#endif  // EXAMPLES_MLA_MLA_CONFIG_H_
