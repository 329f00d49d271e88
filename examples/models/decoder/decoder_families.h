// Unstable: any version may change this header (docs/embedding.md).
//
// The families of decoders: the name of each in config.json, its defaults there, and a reader that
// chooses blocks (DecoderConfig). A family is a row of one table and a function of about 20 lines.
//
//   family         what is its own
//   Llama          the blocks that DecoderConfig begins with; biases by attention_bias and mlp_bias
//   Mistral        a sliding window in all layers, unless it is null
//   Ministral 3    queries grow with the position, in all layers
//   Qwen 2         biases on q, k and v; windows in the layers that layer_types or
//                  max_window_layers name
//   Qwen 3         a norm with weights of each head of q and k; windows as Qwen 2. Also the text
//                  model of Qwen3-VL, in whose texts all axes of the rotation have one position
//   Phi-3          one tensor for q, k and v, one for gate and up; a window in all layers. Also
//                  Phi-4
//   Granite        factors of embeddings, scores, residuals and logits
//   Seed-OSS       biases of q, k and v alone
//   Llama 4        the dense text model: neighbours are rotated together; chunked-local layers with
//                  a plain norm of q and k, and layers without rotation whose queries grow with the
//                  position
//   Gemma          one plus the weights of norms, scaled embeddings
//   Gemma 2        also soft caps, alternate layers of a window, norms after sublayers, a scale of
//                  its own for queries
//   Gemma 3        as Gemma 2, without soft caps; norms of q and k; five layers of a window, with a
//                  RoPE of their own, to a full one
//   Qwen 2 MoE     Qwen 2 with experts, and a shared expert behind a gate
//   Qwen 3 MoE     Qwen 3 with experts
//   Mixtral        Mistral with experts
//   OLMoE          Llama with experts; one norm for all heads of q, and one for those of k
//   gpt-oss        experts with biases and a clamped gate, sinks, alternate layers of a window,
//                  biases on all projections
//   GLM-4.5        half of each head rotates; experts as in DeepSeek-V3. Also GLM-4.6 and 4.7
//   DeepSeek-V2    multi-head latent attention; experts by their softmax, shared ones beside them,
//                  dense first layers
//   DeepSeek-V3    as V2, with experts by their sigmoid and a bias for the choice; weights of 16
//                  bits
//
//   REPRISE_ASSIGN_OR_RETURN(const DecoderFamily* family, FindDecoderFamily(fields));
//   REPRISE_RETURN_IF_ERROR(family->read(fields, config));
//
// docs/models.md describes how to add one. Thread safety: const data, pure functions.

#ifndef REPRISE_MODELS_DECODER_DECODER_FAMILIES_H_
#define REPRISE_MODELS_DECODER_DECODER_FAMILIES_H_

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/json_fields.h"
#include "reprise/models/decoder/decoder_config.h"

namespace reprise {

struct DecoderFamily {
  ModelKind kind;
  // The defaults of fields that config.json leaves out.
  double default_theta = 10000;
  std::optional<double> default_window_theta = {};  // of families with a RoPE for windows
  double rotary_fraction = 1;
  // Whether "partial_rotary_factor" chooses the part of a head that rotates. transformers ignores
  // the member in other families, so any value except 1 is refused there.
  bool has_rotary_fraction = false;
  // Members of the RoPE that `read` takes or that do not concern texts (RopeDefaults).
  absl::Span<const std::string_view> other_rope_members = {};
  bool has_original_length = false;
  bool is_latent = false;  // heads in the form of MLA
  // A JSON object: values of members that config.json leaves out or has as null.
  const char* defaults = "{}";
  const char* activation_field = "hidden_act";  // names the activation
  // Reads the family's own members; those of all families are in `config` already.
  absl::Status (*read)(const JsonFields& fields, DecoderConfig& config);
};

// The kind of each family, in the order of the table of families.
std::vector<ModelKind> DecoderKinds();

// Errors: those of FindModelKind().
absl::StatusOr<const DecoderFamily*> FindDecoderFamily(const JsonFields& fields);

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_FAMILIES_H_
