// Unstable: any version may change this header (docs/embedding.md).
//
// The inverse frequencies of RoPE, plain or scaled: the angle per position of each pair of a head's
// elements. Also reads them from config.json, in either of the two forms that Hugging Face has
// used:
//
//   "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ...}
//   "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, ...}
//
// The second is that of transformers 5. In the first the type may also be called "type".
//
//   REPRISE_ASSIGN_OR_RETURN(config.rope, ReadRopeConfig(fields, {.max_seq_len = 4096}));
//   std::vector<float> frequencies = RopeFrequencies(config.rope, config.head_dim);
//   angle = position * frequencies[i];   // turns elements i and head_dim / 2 + i
//
// Thread safety: pure functions.

#ifndef REPRISE_HF_ROPE_H_
#define REPRISE_HF_ROPE_H_

#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/hf/json_fields.h"

namespace reprise {

// Each frequency is theta^(-2i / head_dim), as in the RoFormer paper (arXiv 2104.09864).
struct DefaultRope {
  friend bool operator==(const DefaultRope&, const DefaultRope&) = default;
};

// All frequencies divided by `factor`, as if positions were (arXiv 2306.15595).
struct LinearRope {
  double factor = 1;  // >= 1
  friend bool operator==(const LinearRope&, const LinearRope&) = default;
};

// Llama 3.1: divides long waves by `factor`, keeps short waves, and blends in between. A wave of w
// tokens is
//   long   if w > original_max_seq_len / low_freq_factor
//   short  if w < original_max_seq_len / high_freq_factor
// and otherwise a blend with the weight (original_max_seq_len / w - low) / (high - low) for the one
// that is kept. If the two factors are equal, as in Llama 4 Scout, every wave that is not long is
// short.
struct Llama3Rope {
  double factor = 8;  // >= 1
  double low_freq_factor = 1;
  double high_freq_factor = 4;  // >= low_freq_factor
  int original_max_seq_len = 8192;
  friend bool operator==(const Llama3Rope&, const Llama3Rope&) = default;
};

// YaRN (arXiv 2309.00071): pairs that turn more than beta_fast times within the original length
// keep their frequency; pairs that turn less than beta_slow times have it divided by `factor`;
// between them, in the order of the frequencies, is a linear ramp. Cosines and sines are multiplied
// by attention_factor.
struct YarnRope {
  double factor = 1;            // >= 1
  double attention_factor = 1;  // > 0
  double beta_fast = 32;
  double beta_slow = 1;  // > 0, <= beta_fast
  int original_max_seq_len = 4096;
  // Whether the ends of the ramp are whole pairs.
  bool truncate = true;
  friend bool operator==(const YarnRope&, const YarnRope&) = default;
};

using RopeScaling = std::variant<DefaultRope, LinearRope, Llama3Rope, YarnRope>;

struct RopeConfig {
  double theta = 10000;  // >= 1; YaRN: > 1
  // The part of a head that rotates, its first dims: in (0, 1].
  double rotary_fraction = 1;
  RopeScaling scaling = DefaultRope();
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// [rotary_dim / 2], computed in float32 step by step as Hugging Face transformers 5.17 does, since
// checkpoints are compared with its results: both agree to a few units in the last place.
// rotary_dim: the dims of a head that rotate. REQUIRES: it is even and positive.
std::vector<float> RopeFrequencies(const RopeConfig& config, int rotary_dim);

// The factor of cosines and sines: 1 except for YaRN.
double RopeAttentionFactor(const RopeConfig& config);

// YaRN's factor of attention for texts of `factor` times the original length: 0.1 mscale
// ln(factor) + 1, or 1 if factor is at most 1.
double YarnMScale(double factor, double mscale);

// The object that describes RoPE: "rope_parameters", or "rope_scaling" of older files; nullopt if
// both are absent. Errors: InvalidArgument if it is no object.
absl::StatusOr<std::optional<JsonFields>> RopeForm(const JsonFields& config);

struct RopeDefaults {
  // max_position_embeddings: the default of original_max_position_embeddings.
  int max_seq_len = 0;
  double theta = 10000;
  double rotary_fraction = 1;
  // Members of either form that the caller reads or ignores.
  absl::Span<const std::string_view> other_members = {};
  // Whether "original_max_position_embeddings" may stand outside of either form, where it chooses
  // nothing: Phi-3.
  bool has_original_length = false;
};

// `config` is the whole of config.json. If both forms are absent, RoPE is plain with the default
// theta. YaRN's attention factor, unless given, is 0.1 ln(factor) + 1, or the ratio of two of its
// kind if mscale and mscale_all_dim are there. "attn_factor" multiplies that value, as in the code
// of YaRN's authors and in vLLM; transformers ignores the member. DeepSeek-R1-0528-Qwen3-8B uses
// attn_factor to make the product 1. YaRN's factor, if null, is max_position_embeddings /
// original_max_position_embeddings. "finetuned" is read and chooses nothing.
// Errors: InvalidArgument, naming the field: both forms at once, a type that is not "default",
// "linear", "llama3" or "yarn", a parameter missing, out of range or unknown, attn_factor beside
// attention_factor. "partial_rotary_factor" may stand in the file or in either form.
absl::StatusOr<RopeConfig> ReadRopeConfig(const JsonFields& config, const RopeDefaults& defaults);

// The RoPEs of a model whose layers of windowed attention have one of their own.
struct LayerRopes {
  RopeConfig full;
  RopeConfig window;
};

// Both, in either form: "rope_parameters" with members "full_attention" and "sliding_attention",
// each as in ReadRopeConfig(); or one for the full layers, as there, and "rope_local_base_freq" for
// the windows', which is plain. `window_theta`: the default of the latter. Errors: as above.
absl::StatusOr<LayerRopes> ReadLayerRopes(const JsonFields& config, const RopeDefaults& defaults,
                                          double window_theta);

}  // namespace reprise

#endif  // REPRISE_HF_ROPE_H_
