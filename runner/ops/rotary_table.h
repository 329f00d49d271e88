// The cosines and sines of rotary position embedding (Su et al., 2021), computed once per model.
//
//   std::vector<float> inverse_frequencies(64);  // theta^(-2i / 128), scaled as by the model
//   REPRISE_ASSIGN_OR_RETURN(at::Tensor table,
//                            MakeRotaryTable(inverse_frequencies, 8192, 1.0f, at::kCUDA));
//
// The caller applies the model's scaling of frequencies (linear, llama3, YaRN) beforehand.

#ifndef REPRISE_RUNNER_OPS_ROTARY_TABLE_H_
#define REPRISE_RUNNER_OPS_ROTARY_TABLE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace reprise {

// Returns [max_positions, rotary_dim] float32 on `device`, where rotary_dim = 2 *
// inverse_frequencies.size(). Row p holds attention_factor * cos(p * f_i) for each i, then
// attention_factor * sin(p * f_i). The angle is a float32 product, as in Hugging Face's models; its
// cosine and sine are computed in float64. Errors: InvalidArgument, naming the argument, if there
// are no frequencies or no positions, or if a frequency or attention_factor is not finite;
// ResourceExhausted if the table does not fit.
absl::StatusOr<at::Tensor> MakeRotaryTable(absl::Span<const float> inverse_frequencies,
                                           int max_positions, float attention_factor,
                                           c10::Device device);

}  // namespace reprise

#endif  // REPRISE_RUNNER_OPS_ROTARY_TABLE_H_
