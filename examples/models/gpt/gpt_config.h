// Unstable: any version may change this header (docs/embedding.md).
//
// Reads the config.json of decoders with norms of mean and variance before each sublayer and a
// feed-forward by GELU without a gate:
//
//   GPT-2 (Radford et al., 2019)   learned positions
//   BLOOM (Le Scao et al., 2022)   ALiBi in place of positions, a norm after the embedding
//
//   REPRISE_ASSIGN_OR_RETURN(GptConfig config, LoadGptConfig("models/gpt2"));
//
// Every number is checked here; features that would change the results and are not implemented are
// refused by name. Thread safety: pure functions.

#ifndef REPRISE_MODELS_GPT_GPT_CONFIG_H_
#define REPRISE_MODELS_GPT_GPT_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/base/dtype.h"
#include "reprise/hf/config_fields.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

enum class GptFamily : int8_t { kGpt2, kBloom };

struct GptConfig {
  GptFamily family = GptFamily::kGpt2;
  int hidden_size = 0;
  int inner_size = 0;
  int num_layers = 0;
  int num_heads = 0;  // divides hidden_size
  int vocab_size = 0;
  // GPT-2: the rows of its positions. BLOOM: seq_length, 2048 if it is absent; ALiBi has no limit
  // of its own.
  int max_seq_len = 0;
  double layer_norm_eps = 1e-5;
  GeluForm gelu = GeluForm::kTanh;
  bool tie_word_embeddings = true;
  // The type that the weights were saved in; nullopt if the file does not specify it.
  std::optional<DType> dtype;
  // Generation ends at any of these; ascending, without duplicates, possibly empty.
  std::vector<int32_t> eos_token_ids;

  int head_dim() const { return hidden_size / num_heads; }
};

inline constexpr std::array kGptKinds = {ModelKind{"GPT2LMHeadModel", "gpt2"},
                                         ModelKind{"BloomForCausalLM", "bloom"}};

// Errors: InvalidArgument, naming the field, what was expected and what was got.
absl::StatusOr<GptConfig> ParseGptConfig(const nlohmann::json& config);

// The config of a folder. Errors: those of LoadModelConfig().
absl::StatusOr<GptConfig> LoadGptConfig(const std::string& folder);

}  // namespace reprise

#endif  // REPRISE_MODELS_GPT_GPT_CONFIG_H_
