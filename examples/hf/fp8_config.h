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

// OK without "quantization_config", and with one of fp8 weights (e4m3) whose scales are of tensors,
// rows or blocks of 128 x 128: quant_method "fp8" or "fbgemm_fp8", or "compressed-tensors" with
// format "float-quantized". How activations would be quantised does not matter: they are not.
// Errors: InvalidArgument, naming the member, for all others.
absl::Status AcceptFp8Weights(const JsonFields& fields);

}  // namespace reprise

#endif  // REPRISE_HF_FP8_CONFIG_H_
