// Unstable: any version may change this header (docs/embedding.md).
//
// Reads config.json and generation_config.json of a Hugging Face folder with a decoder: layers of
// attention and a feed-forward, normalised by their root mean square, each added to the residual
// stream.
//
//   REPRISE_ASSIGN_OR_RETURN(DecoderConfig config, LoadDecoderConfig("models/jargon-llama"));
//   std::vector<float> frequencies = RopeFrequencies(config.rope, config.rotary_dim);
//
// A family of models is a choice among the fields below; decoder_families.h has the table of
// families. Weights and model depend on these fields alone, not on the family.
//
// Every number is checked here, against its own range and against the others, so that the model's
// code may multiply them without overflow checks. A field that would change the results and is not
// implemented is refused by name.
// Thread safety: pure functions.

#ifndef REPRISE_MODELS_DECODER_DECODER_CONFIG_H_
#define REPRISE_MODELS_DECODER_DECODER_CONFIG_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "reprise/base/dtype.h"
#include "reprise/hf/rope.h"
#include "reprise/hf/tensor_names.h"
#include "reprise/models/moe/experts_config.h"
#include "reprise/runner/ops/op_options.h"

namespace reprise {

// How one layer attends.
struct LayerAttention {
  // Tokens that a query sees, its own included: a sliding window.
  std::optional<int> window = {};
  // Chunked-local attention: a query sees only the keys of its own chunk of this many tokens.
  std::optional<int> chunk = {};
  bool rotates = true;  // RoPE on q and k

  friend bool operator==(const LayerAttention&, const LayerAttention&) = default;
};

// How q and k are normalised.
enum class QkNorm : int8_t {
  kNone,
  kWeighted,  // each head, with weights in the form of norm_weight, before the rotation
  kAllHeads,  // all heads of q, and of k, as one vector, with weights, before the rotation: OLMoE
  kPlain,     // each head, without weights, after the rotation, in the layers that rotate: Llama 4
};

// Which elements of a head RoPE turns together.
enum class RopePairs : int8_t {
  kHalves,      // d and d + head_dim / 2
  kNeighbours,  // 2 d and 2 d + 1; loading reorders the rows of q and k, so that steps see halves
};

// Multi-head latent attention (MLA; DeepSeek-AI, 2024): a token's keys and values of all heads come
// from one latent of kv_rank elements; in addition, all heads share a rotated key of rope_dim
// elements. Only that latent and that key are cached.
struct LatentAttention {
  std::optional<int> q_rank;  // nullopt: queries are projected in one step
  int kv_rank = 0;
  int nope_dim = 0;  // of q and k, not rotated
  int rope_dim = 0;  // of q and k, rotated; even
  int v_dim = 0;

  int qk_dim() const { return nope_dim + rope_dim; }
  int latent_dim() const { return kv_rank + rope_dim; }

  friend bool operator==(const LatentAttention&, const LatentAttention&) = default;
};

// The names of a layer's tensors after "model.layers.N.", where they differ between families.
// Empty: the layer has no such tensor.
struct LayerNames {
  std::string_view input_norm = "input_layernorm.weight";
  std::string_view attention_output_norm = "";
  std::string_view mlp_norm = "post_attention_layernorm.weight";
  std::string_view mlp_output_norm = "";
  std::string_view mlp = "mlp";  // before ".down_proj"
  // One stored tensor for q, k and v, and one for gate and up: Phi-3.
  bool is_fused = false;

  friend bool operator==(const LayerNames&, const LayerNames&) = default;
};

// Norms of each sublayer's input and of its output, before that joins the residual stream: Gemma 2.
inline constexpr LayerNames kNormsBeforeAndAfter = {
    .attention_output_norm = "post_attention_layernorm.weight",
    .mlp_norm = "pre_feedforward_layernorm.weight",
    .mlp_output_norm = "post_feedforward_layernorm.weight"};

struct DecoderConfig {
  int hidden_size = 0;
  int intermediate_size = 0;  // of layers without experts
  int num_layers = 0;
  int num_prediction_layers = 0;  // after the layers, in the checkpoint; they are not loaded
  int num_q_heads = 0;
  int num_kv_heads = 0;  // divides num_q_heads
  // Of q and k, even, MLA: latent->qk_dim(). num_q_heads * head_dim need not be hidden_size.
  int head_dim = 0;
  int vocab_size = 0;
  int max_seq_len = 0;  // max_position_embeddings
  double rms_norm_eps = 0;
  bool tie_word_embeddings = false;  // the output projection is the embedding
  bool qkv_bias = false;             // on q, k and v projections; MLA: on those to latents
  bool o_bias = false;               // on attention's output projection
  bool mlp_bias = false;             // on gate, up and down projections
  RopeConfig rope;
  std::optional<RopeConfig> window_rope;  // of layers with a window, if theirs differs
  RopePairs rope_pairs = RopePairs::kHalves;

  Activation activation = Activation::kSilu;
  NormWeight norm_weight = NormWeight::kScale;
  QkNorm qk_norm = QkNorm::kNone;

  double embedding_scale = 1;           // of the embeddings of tokens
  bool rounds_embedding_scale = false;  // to the dtype of the weights: Gemma
  double residual_scale = 1;            // of a sublayer's output, before it is added
  double logit_divisor = 1;
  std::optional<double> attention_scale;  // nullopt: 1 / sqrt(head_dim)
  std::optional<double> attention_softcap;
  bool sinks = false;  // a logit per head without a value
  std::optional<double> logit_softcap;
  // Of queries, in the layers that do not rotate, or in all.
  std::optional<QueryTemperature> temperature;
  bool tempers_all_layers = false;
  // One per layer; empty: all attend to everything before them, and rotate.
  std::vector<LayerAttention> attention;
  std::optional<LatentAttention> latent;  // nullopt: grouped-query attention

  // The feed-forward of layers that are mixtures; nullopt: there are none.
  std::optional<ExpertsConfig> experts;
  // Whether each layer is no mixture; empty: all are mixtures, if there are experts.
  std::vector<bool> is_dense;

  LayerNames names;
  TensorNames tensor_names = TensorNames::kPlain;  // kWrapped: the decoder of a larger model

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
  // Dims of a head that rotate: its first ones, MLA: its last ones. Even.
  int rotary_dim() const {
    return latent.has_value() ? latent->rope_dim
                              : static_cast<int>(head_dim * rope.rotary_fraction);
  }
  // Dims of v, and of attention's output for each q head.
  int v_dim() const { return latent.has_value() ? latent->v_dim : head_dim; }
  bool HasExperts(int layer) const {
    return experts.has_value() && (is_dense.empty() || !is_dense[layer]);
  }
  bool HasDenseLayer() const {
    return !experts.has_value() ||
           std::find(is_dense.begin(), is_dense.end(), true) != is_dense.end();
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
