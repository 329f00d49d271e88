// Describes an attention layer of a model to builders and cache: what it computes
// (AttentionParams), over whose keys, and how long it needs them.
//
//   // Llama 4 text: three layers of chunked-local attention, then one of full attention.
//   std::vector<LayerSpec> layers = {{.params = params, .chunk_size = 8192},
//                                    {.params = params, .chunk_size = 8192},
//                                    {.params = params, .chunk_size = 8192},
//                                    {.params = params}};
//
// A value; thread safety: const data.

#ifndef REPRISE_ATTENTION_LAYER_SPEC_H_
#define REPRISE_ATTENTION_LAYER_SPEC_H_

#include <cstdint>
#include <optional>

#include "reprise/attention/attention_params.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Whose keys a layer attends to. Common names: "decoder", "encoder", "encoder-only",
// "encoder-decoder".
enum class AttentionKind : int8_t {
  kDecoder,         // the sequence's own cached keys, causal
  kEncoder,         // this pass's tokens in both directions, without a cache, of an encoder-decoder
  kEncoderOnly,     // the same, of a model without a decoder
  kEncoderDecoder,  // cross attention: the encoder's keys, cached once, not causal
};

struct LayerSpec {
  AttentionParams params = {};
  AttentionKind kind = AttentionKind::kDecoder;
  // Chunked-local attention: a query sees only the keys of its own chunk of this many tokens.
  std::optional<int> chunk_size = {};
  // The earlier layer whose cache this layer reads. This layer then has no cache and writes
  // nothing.
  std::optional<int> shares_kv_with = {};
  // Absorbed MLA: V is the first head_dim_v columns of K, stored and loaded once.
  bool v_in_k = false;
  // Of a quantised cache: value = stored * scale (cache/storage/kv_layer.h), for example from a
  // checkpoint. nullopt: 1, or calibrated by the owner of the cache. Latents have k_scale alone.
  std::optional<float> k_scale = {};
  std::optional<float> v_scale = {};
  // Of q as attention gets it: an fp8 type with params.q_scale, for example. Metadata is planned for
  // it. nullopt: the model's.
  std::optional<DType> q_dtype = {};
  // For which kernels metadata is planned on CUDA; what `params` needs is added to it.
  KernelChoice kernels = {};
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_LAYER_SPEC_H_
