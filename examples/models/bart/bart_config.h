// Unstable: any version may change this header (docs/embedding.md).
//
// Reads the config.json of a BART encoder-decoder (Lewis et al., 2020): learned positions, norms
// after every sublayer, GELU, biases everywhere.
//
//   REPRISE_ASSIGN_OR_RETURN(BartConfig config, LoadBartConfig("models/bart-large-cnn"));
//
// Every number is checked here; features that would change the results and are not implemented
// (other activations, norms before sublayers, an output projection of its own, quantised weights)
// are refused by name. Thread safety: pure functions.

#ifndef REPRISE_MODELS_BART_BART_CONFIG_H_
#define REPRISE_MODELS_BART_BART_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/base/dtype.h"
#include "reprise/hf/config_fields.h"

namespace reprise {

// The encoder or the decoder.
struct BartStackConfig {
  int num_layers = 0;
  int num_heads = 0;  // divides d_model; the decoder's are those of its cross attention too
  int ffn_dim = 0;
};

struct BartConfig {
  int d_model = 0;
  int vocab_size = 0;
  int max_seq_len = 0;  // of the encoder's input, and of the decoder's
  BartStackConfig encoder;
  BartStackConfig decoder;
  bool scale_embedding = false;  // token embeddings times sqrt(d_model)
  int32_t decoder_start_token_id = 0;
  std::optional<DType> dtype;  // of the weights; nullopt if the file does not specify it
  // Generation ends at any of these; ascending, without duplicates, possibly empty.
  std::vector<int32_t> eos_token_ids;
};

// BartModel is the same model saved without its head, which is tied to the embedding anyway
// (facebook/bart-base).
inline constexpr std::array<ModelKind, 2> kBartKinds = {
    ModelKind{"BartForConditionalGeneration", "bart"}, ModelKind{"BartModel", "bart"}};

// Errors: InvalidArgument, naming the field, what was expected and what was got.
absl::StatusOr<BartConfig> ParseBartConfig(const nlohmann::json& config);

// `config` with the first token and the end tokens of a generation_config.json: a first token
// replaces the config's, end tokens are added to the config's. Errors: as above.
absl::StatusOr<BartConfig> WithGenerationConfig(BartConfig config,
                                                const nlohmann::json& generation_config);

// The config of a folder. Errors: those of LoadModelConfig().
absl::StatusOr<BartConfig> LoadBartConfig(const std::string& folder);

}  // namespace reprise

#endif  // REPRISE_MODELS_BART_BART_CONFIG_H_
