// Unstable: any version may change this header (docs/embedding.md).
//
// The families of models of the Llama kind: the name of each in config.json, its defaults there,
// and the blocks (DecoderConfig) that it chooses.
//
//   family   what is its own
//   Llama    the blocks that DecoderConfig begins with; biases by attention_bias and mlp_bias
//   Mistral  a sliding window in all layers, unless it is null
//   Qwen 2   biases on q, k and v; windows in the layers that layer_types or max_window_layers say
//   Qwen 3   a norm with weights of each head of q and k; windows as Qwen 2
//   Llama 4  the dense text model: neighbours are rotated together; chunked-local layers with a
//            plain norm of q and k, and layers without rotation whose queries grow with the
//            position
//   Qwen 3 MoE  Qwen 3 with a mixture of experts in every layer
//   gpt-oss  a mixture of experts with biases and a clamped gate, sinks, alternate layers of a
//            window, biases on all projections
//   Gemma 2  soft caps, alternate layers of a window, norms before and after with one plus their
//            weight, scaled embeddings, a scale of its own for queries
//   Gemma 3  as Gemma 2, without soft caps; norms of q and k; five layers of a window, with a RoPE
//            of their own, to a full one
//
//   REPRISE_ASSIGN_OR_RETURN(const DecoderFamily* family, FindDecoderFamily(fields));
//   REPRISE_RETURN_IF_ERROR(family->read(fields, config));
//
// docs/models.md describes how to add one. Thread safety: const data, pure functions.

#ifndef REPRISE_MODELS_DECODER_DECODER_FAMILIES_H_
#define REPRISE_MODELS_DECODER_DECODER_FAMILIES_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/hf/config_fields.h"
#include "reprise/hf/json_fields.h"
#include "reprise/models/decoder/decoder_config.h"

namespace reprise {

struct DecoderFamily {
  Architecture architecture;
  ModelKind kind;
  // The defaults of fields that config.json leaves out.
  double default_theta = 10000;
  std::optional<double> default_window_theta = {};  // of families with a RoPE for windows
  std::optional<int> default_head_dim = {};         // nullopt: hidden_size / num_attention_heads
  bool ties_embeddings = false;
  // The member that names the activation, and the default activation.
  const char* activation_field = "hidden_act";
  Activation default_activation = Activation::kSilu;
  // Reads the family's own members; those of all families are in `config` already.
  absl::Status (*read)(const JsonFields& fields, DecoderConfig& config);
};

// The kind of each family, in the order of the table of families.
std::vector<ModelKind> DecoderKinds();

// Errors: those of FindModelKind().
absl::StatusOr<const DecoderFamily*> FindDecoderFamily(const JsonFields& fields);

}  // namespace reprise

#endif  // REPRISE_MODELS_DECODER_DECODER_FAMILIES_H_
