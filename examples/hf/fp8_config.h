// Unstable: any version may change this header (docs/embedding.md).
//
// What config.json says of quantised weights, for models that can compute with fp8 values and
// scales (examples/hf/stored_scales.h).
//
// Thread safety: pure function.

#ifndef REPRISE_HF_FP8_CONFIG_H_
#define REPRISE_HF_FP8_CONFIG_H_

#include "absl/status/status.h"
#include "reprise/hf/json_fields.h"

namespace reprise {

// Returns OK without "quantization_config", and with one of fp8 weights (e4m3) whose scales are of
// tensors, rows or blocks of 128 x 128. By quant_method these are
//
//   fp8, fbgemm_fp8       "fmt", if present, is "e4m3", and "weight_block_size" is [128, 128]
//   compressed-tensors    "format" is "float-quantized", "naive-quantized" or "dense"
//   modelopt              "quant_algo" is "FP8" or "FP8_PER_CHANNEL_PER_TOKEN"; or it is absent,
//                         and "kv_cache_quant_algo" is "FP8"
//
// "dense" and a lone "kv_cache_quant_algo" mean that only the KV cache has scales.
//
// If quant_method is absent, the members that only one method has choose it: "quant_algo" or
// "kv_cache_quant_algo" modelopt, "format" compressed-tensors, and "fmt", "weight_block_size" or
// "activation_scheme" fp8. How activations would be quantised does not matter: they are not.
// Errors: InvalidArgument, naming the member, for all others.
absl::Status AcceptFp8Weights(const JsonFields& fields);

// Returns the number of columns that share a scale: 128 if "quantization_config" has
// "weight_block_size" or a group with the strategy "block" (compressed-tensors), otherwise 1. Ranks
// divide columns at multiples of this number. REQUIRES: AcceptFp8Weights() is OK.
int Fp8BlockColumns(const JsonFields& fields);

}  // namespace reprise

#endif  // REPRISE_HF_FP8_CONFIG_H_
