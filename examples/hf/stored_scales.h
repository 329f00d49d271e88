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
// Thread safety: pure functions.

#ifndef REPRISE_HF_STORED_SCALES_H_
#define REPRISE_HF_STORED_SCALES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
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
  std::vector<int64_t> shape;  // {num_rows, in_features}
  std::optional<Share> rows = {};
  int64_t period = 0;
  std::optional<int> unzipped_head = {};
  int kept_rows = 0;
};

// [num_rows, num_groups] float32 on the CPU: the scales of the rows of all parts, one after the
// other, as Linear::CreateScaled() takes them. `columns`: of the weights' rows, what is read. REQUIRES:
// parts are not empty and have one in_features. Errors: those of CheckScales(); Unimplemented if
// `columns` begins within a block.
absl::StatusOr<at::Tensor> ReadScales(const TensorViews& tensors,
                                      absl::Span<const ScaledRows> parts,
                                      const std::optional<Share>& columns);

}  // namespace reprise

#endif  // REPRISE_HF_STORED_SCALES_H_
