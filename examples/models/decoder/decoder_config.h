// Unstable: any version may change this header (docs/embedding.md).
//
// Reads config.json and generation_config.json of a Hugging Face folder with a model of the Llama
// kind: decoder layers of grouped-query attention and a gated feed-forward, normalised by their
// root mean square.
//
//   REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LoadDecoderConfig("models/jargon-llama"));
//   std::vector<float> frequencies = RopeFrequencies(config.rope, config.head_dim);
//
// A family of models is a choice among the fields below; decoder_families.h holds the table of
// these choices. After this file, only the names of the tensors depend on the family.
//
// Every number is checked here, against its own range and against the others, so that the model's
// code may multiply them without overflow checks. A field that would change the results and is not
// implemented is refused by name.
// Thread safety: pure functions.

#ifndef REPRISE_MODELS_DECODER_DECODER_CONFIG_H_
#define REPRISE_MODELS_DECODER_DECODER_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/base/dtype.h"
#include "reprise/hf/rope.h"
#include "reprise/models/moe/experts_config.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// The known families; see decoder_families.h.
enum class Architecture {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kLlama4,
  kGemma2,
  kGemma3,
  kQwen3Moe,
  kGptOss,
};

// How one layer attends.
struct LayerAttention {
  // Tokens that a query sees, its own included: a sliding window.
  std::optional<int> window = {};
  // Chunked-local attention: a query sees only the keys of its own chunk of this many tokens.
  std::optional<int> chunk = {};
  bool rotates = true;  // RoPE on q and k

  friend bool operator==(const LayerAttention&, const LayerAttention&) = default;
};

// Where q and k are normalised, head by head.
enum class QkNorm : int8_t {
  kNone,
  kWeighted,  // with weights in the form of norm_weight, before the rotation
  kPlain,     // without weights, after the rotation, in the layers that rotate
};

enum class NormPlacement : int8_t {
  kBefore,          // of each sublayer's input
  kBeforeAndAfter,  // of its output too, before that joins the residual stream
};

// Which elements of a head RoPE turns together.
enum class RopePairs : int8_t {
  kHalves,      // d and d + head_dim / 2
  kNeighbours,  // 2 d and 2 d + 1; loading reorders the rows of q and k, so that steps see halves
};

struct DecoderConfig {
  Architecture architecture = Architecture::kLlama;

  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_prediction_layers = 0;  // further layers of the checkpoint, which are not loaded
  int num_q_heads = 0;
  int num_kv_heads = 0;  // divides num_q_heads
  int head_dim = 0;      // even; num_q_heads * head_dim need not be hidden_size
  int vocab_size = 0;
  int max_seq_len = 0;  // max_position_embeddings
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;  // the output projection is the embedding
  bool qkv_bias = false;             // on q, k and v projections
  bool o_bias = false;               // on attention's output projection
  bool mlp_bias = false;             // on gate, up and down projections
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of layers with a window, if theirs differs
  RopePairs rope_pairs = RopePairs::kHalves;

  Activation activation = Activation::kSilu;
  NormWeight norm_weight = NormWeight::kScale;
  NormPlacement norm_placement = NormPlacement::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  bool scale_embedding = false;  // by sqrt(hidden_size), rounded to the dtype

  std::optional<double> attention_scale;  // nullopt: 1 / sqrt(head_dim)
  std::optional<double> attention_softcap;
  bool sinks = false;  // a logit per head without a value
  std::optional<double> logit_softcap;
  // Of queries in the layers that do not rotate.
  std::optional<QueryTemperature> temperature;
  // One per layer; empty: all attend to everything before them, and rotate.
  std::vector<LayerAttention> attention;

  // The feed-forward of every layer; nullopt: one of intermediate_size, not a mixture.
  std::optional<ExpertsConfig> experts;

  // Columns of a stored weight that share a scale (Fp8BlockColumns()). Ranks divide columns at
  // multiples of this number if possible.
  int block_columns = 1;

  // The type that the weights were saved in; nullopt if the file does not specify it.
  std::optional<DType> dtype;
  // Generation ends at any of these; ascending, without duplicates, possibly empty.
  std::vector<int32_t> eos_token_ids;

  LayerAttention AttentionOf(int layer) const {
    return attention.empty() ? LayerAttention() : attention[layer];
  }
  const RopeConfig& RopeOf(int layer) const {
    return window_rope.has_value() && AttentionOf(layer).window.has_value() ? *window_rope : rope;
  }
};

// Reads the members of config.json: those of all families here, and its family's own
// (decoder_families.h). Fields that files commonly leave out have Hugging Face's defaults:
//   num_key_value_heads  num_attention_heads        tie_word_embeddings   false; Gemma: true
//   head_dim             hidden_size / heads, or the family's own
//   hidden_act           "silu" ("swish")           rope_theta            10000; Llama 4: 500000
//   hidden_activation    "gelu_pytorch_tanh", Gemma's name for it
// Gemma 3: rope_theta 1000000; rope_local_base_freq 10000. gpt-oss: rope_theta 150000.
// RoPE is read from "rope_parameters", or from "rope_scaling" and "rope_theta" (rope_config.h).
// Errors: InvalidArgument, naming the field, what was expected and what was got:
//   a field that is missing, of another type, or outside its range (negative, 2^40, 64.5, "NaN")
//   numbers that contradict each other: heads that do not divide, an odd head_dim, a token id past
//     the vocabulary, as many layer_types as there are not layers
//   an architecture, activation, RoPE type, quantization or mixture of experts that is not
//     implemented
absl::StatusOr<DecoderConfig> ParseDecoderConfig(const nlohmann::json& config);

// The config of a folder. Errors: those of LoadModelConfig().
absl::StatusOr<DecoderConfig> LoadDecoderConfig(const std::string& folder);

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_CONFIG_H_
