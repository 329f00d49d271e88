// Unstable: any version may change this header (docs/embedding.md).
//
// The scales of weights of 8 bits, as checkpoints store them beside a tensor "x.weight" of F8_E4M3:
// "x.weight_scale" or "x.weight_scale_inv", both of which values are to be multiplied by, of floats
// of 16, 32 or 64 bits. By their shape, for a weight [out_features, in_features]:
//
//   [] or [1]                                            one for all values
//   [out_features] or [out_features, 1]                  one for each row
//   [out_features / 128, in_features / 128], rounded up  one for each block of 128 x 128
//
// "x.input_scale", for products of 8 bits, which are not used here, may be there, too.
//
// Also the scales of an fp8 KV cache, which a calibration of the model stores for each layer, of
// one element each: value = stored * scale. In order of preference, with v for k in the names of V:
//
//   self_attn.k_scale, self_attn.attn.k_scale   llm-compressor, vLLM
//   self_attn.k_proj.k_scale                    modelopt
//   self_attn.k_proj.output_scale               compressed-tensors before 0.7
//   self_attn.kv_scale                          one for both: vLLM before 0.6
//
// Thread safety: pure functions.

#ifndef REPRISE_HF_STORED_SCALES_H_
#define REPRISE_HF_STORED_SCALES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/safetensors.h"

namespace reprise {

// Names that may be beside a weight of 8 bits.
std::vector<std::string> NamesBesideScaled(const std::string& weight);

// InvalidArgument, naming the weight, unless it has scales of one of the forms.
absl::Status CheckScales(const TensorViews& tensors, const std::string& weight);

// Rows of a stored weight that become rows of another, as in WeightPart.
struct ScaledRows {
  std::string name;
  std::vector<int64_t> shape;  // of the part: {num_rows, in_features}
  std::optional<Share> rows = {};
  int64_t period = 0;
  std::optional<int> unzipped_head = {};
  int kept_rows = 0;
  // The part is rows [first_row, first_row + num_rows) of a weight of num_stored_rows rows (0:
  // num_rows). The scales are stored for the whole weight, in any of the forms; blocks may cross
  // the ends of the part.
  int64_t first_row = 0;
  int64_t num_stored_rows = 0;
};

// [num_rows, num_groups] float32 on the CPU: the scales of the rows of all parts, one after the
// other, as Linear::CreateScaled() takes them. `columns`: of the weights' rows, what is read.
// REQUIRES: parts are not empty and have one in_features. Errors: those of CheckScales();
// Unimplemented if `columns` begins within a block.
absl::StatusOr<at::Tensor> ReadScales(const TensorViews& tensors,
                                      absl::Span<const ScaledRows> parts,
                                      const std::optional<Share>& columns);

// Scales of a layer's KV cache, as LayerSpec takes them; nullopt: the checkpoint has none.
struct StoredKvScales {
  std::optional<float> k = {};
  std::optional<float> v = {};
};

// Whether a tensor is a scale of attention: of a KV cache, or of queries and probabilities
// ("q_scale", "prob_scale", "q_proj.output_scale"), which are not used.
bool IsAttentionScale(std::string_view name);

// The scales of the layer whose names begin with `layer`, such as "model.layers.0.". Whether they
// are positive is left to KvScales (runner/kv_scales.h), as only an fp8 cache reads them. Errors:
// InvalidArgument, naming the tensor, unless it has one element, of 16, 32 or 64 bit floats.
absl::StatusOr<StoredKvScales> ReadKvScales(const TensorViews& tensors, const std::string& layer);

}  // namespace reprise

#endif  // REPRISE_HF_STORED_SCALES_H_
