// Unstable: any version may change this header (docs/embedding.md).
//
// Reads the config.json of a DeepSeek-V2 decoder: multi-head latent attention (MLA; DeepSeek-AI,
// 2024) and a gated feed-forward.
//
//   REPRISE_ASSIGN_OR_RETURN(MlaConfig config, LoadMlaConfig("models/deepseek-small"));
//
// A token's keys and values of all heads come from one latent of kv_lora_rank elements. In
// addition, all heads share a rotated key of qk_rope_head_dim elements. Only that latent and that
// key are cached.
//
// Every number is checked here; features that would change the results and are not implemented
// (mixtures of experts, quantised weights) are refused by name. Thread safety: pure functions.

#ifndef REPRISE_MODELS_DEEPSEEK_MLA_CONFIG_H_
#define REPRISE_MODELS_DEEPSEEK_MLA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/base/dtype.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/rope.h"

namespace reprise {

struct MlaConfig {
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_prediction_layers = 0;  // further layers of the checkpoint, which are not loaded
  int num_heads = 0;
  std::optional<int> q_lora_rank;  // nullopt: queries are projected in one step
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
  std::optional<DType> dtype;  // of the weights; nullopt if the file does not specify it
  // Generation ends at any of these; ascending, without duplicates, possibly empty.
  std::vector<int32_t> eos_token_ids;

  int qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
};

inline constexpr ModelKind kMlaKind = {"DeepseekV2ForCausalLM", "deepseek_v2"};

// Errors: InvalidArgument, naming the field, what was expected and what was got.
absl::StatusOr<MlaConfig> ParseMlaConfig(const nlohmann::json& config);

// The config of a folder. Errors: those of LoadModelConfig().
absl::StatusOr<MlaConfig> LoadMlaConfig(const std::string& folder);

}  // namespace reprise

#endif  // REPRISE_MODELS_DEEPSEEK_MLA_CONFIG_H_
