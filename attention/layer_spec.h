// Describes an attention layer of a model for the metadata builders and the cache: its computation
// (AttentionParams), whose keys it reads, and how long it needs them.
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

// The source of a layer's keys. Common names: "decoder", "encoder", "encoder-only",
// "encoder-decoder".
enum class AttentionKind : int8_t {
  kDecoder,         // self-attention over the sequence's cached keys; causal
  kEncoder,         // encoder of an encoder-decoder: this pass's tokens, both directions, no cache
  kEncoderOnly,     // like kEncoder, for a model without a decoder
  kEncoderDecoder,  // cross attention: the encoder's keys, cached once; not causal
};

struct LayerSpec {
  AttentionParams params = {};
  AttentionKind kind = AttentionKind::kDecoder;
  // Chunked-local attention: queries see only the keys of their chunk. Tokens per chunk.
  std::optional<int> chunk_size = {};
  // The earlier layer whose cache this layer reads. This layer then has no cache and writes no
  // keys.
  std::optional<int> shares_kv_with = {};
  // Absorbed MLA: V is the first head_dim_v columns of K, stored and loaded once.
  bool v_in_k = false;
  // Scales of a quantised cache: value = stored * scale (cache/storage/kv_layer.h), for example
  // from a checkpoint. nullopt: 1, or calibrated by the owner of the cache. MLA caches use only
  // k_scale.
  std::optional<float> k_scale = {};
  std::optional<float> v_scale = {};
  // The dtype of q in attention calls, for which metadata is planned; for example an fp8 type with
  // params.q_scale. nullopt: the model's dtype.
  std::optional<DType> q_dtype = {};
  // The kernels for which metadata is planned on CUDA. Requirements of `params` are added.
  KernelChoice kernels = {};
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_LAYER_SPEC_H_
