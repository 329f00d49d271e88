// What config.json and generation_config.json of a Hugging Face folder say about a model.
//
//   REPRISE_ASSIGN_OR_RETURN(LlamaConfig config, LoadLlamaConfig("models/jargon-llama"));
//   std::vector<float> frequencies = RopeFrequencies(config.rope, config.head_dim);
//
// Every number is checked here, against its own range and against the others, so that who builds
// the model may multiply them without thinking of overflow. A field that would change the results
// and is not implemented is refused by name.
// Thread safety: pure functions.

#ifndef EXAMPLES_LLAMA_LLAMA_CONFIG_H_
#define EXAMPLES_LLAMA_LLAMA_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "examples/llama/rope_frequencies.h"
#include "nlohmann/json.hpp"

namespace reprise {

// The families that are known. Each has a row in llama_config.cc: its name in config.json and its
// own fields.
enum class Architecture { kLlama };

struct LlamaConfig {
  Architecture architecture = Architecture::kLlama;

  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;  // divides num_q_heads
  int head_dim = 0;      // even; num_q_heads * head_dim need not be hidden_size
  int vocab_size = 0;
  int max_seq_len = 0;  // max_position_embeddings
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;  // the output projection is the embedding
  bool attention_bias = false;       // on q, k, v and output projections
  bool mlp_bias = false;             // on gate, up and down projections
  RopeConfig rope;

  // The type that the weights were saved in; nothing if the file does not say.
  std::optional<DType> dtype;
  std::optional<int32_t> bos_token_id;
  // Generation ends at any of these; ascending, none twice, perhaps none at all.
  std::vector<int32_t> eos_token_ids;
};

// Reads the members of config.json. Where Hugging Face has a default so do we, if leaving the field
// out is customary:
//   num_key_value_heads  num_attention_heads        tie_word_embeddings   false
//   head_dim             hidden_size / heads        attention_bias        false
//   hidden_act           "silu"                     mlp_bias              false
//   rope_theta           10000
// RoPE is read from "rope_parameters", or from "rope_scaling" and "rope_theta", with the types
// "default", "linear" and "llama3".
// Errors: InvalidArgument, naming the field, what was expected and what was got:
//   a field that is missing, of another type, or outside its range (negative, 2^40, 64.0, "NaN")
//   numbers that contradict each other: heads that do not divide, an odd head_dim, a token id past
//     the vocabulary
//   an architecture, activation, RoPE type or quantization that is not implemented
absl::StatusOr<LlamaConfig> ParseLlamaConfig(const nlohmann::json& config);

// `config` with the end tokens of a generation_config.json added to its own: a model may end with
// either.
// Errors: InvalidArgument as above.
absl::StatusOr<LlamaConfig> WithGenerationConfig(LlamaConfig config,
                                                 const nlohmann::json& generation_config);

// Reads <folder>/config.json and, if it exists, <folder>/generation_config.json.
// Errors: those of ReadJsonFile() and of the functions above, naming the file.
absl::StatusOr<LlamaConfig> LoadLlamaConfig(const std::string& folder);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_LLAMA_CONFIG_H_
