#include "reprise/runner/ops/rotary_table.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "reprise/base/torch_status.h"

namespace reprise {

absl::StatusOr<at::Tensor> MakeRotaryTable(absl::Span<const float> inverse_frequencies,
                                           int max_positions, float attention_factor,
                                           c10::Device device) {
  if (inverse_frequencies.empty()) {
    return absl::InvalidArgumentError(
        "inverse_frequencies must not be empty: expected rotary_dim / 2, got 0");
  }
  if (max_positions < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_positions must be positive: expected >= 1, got ", max_positions));
  }
  if (!std::isfinite(attention_factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention_factor must be finite: got ", attention_factor));
  }
  for (float frequency : inverse_frequencies) {
    if (!std::isfinite(frequency)) {
      return absl::InvalidArgumentError(
          absl::StrCat("inverse_frequencies must be finite: got ", frequency));
    }
  }
  return CatchTorchOr([&]() -> absl::StatusOr<at::Tensor> {
    const int64_t half = static_cast<int64_t>(inverse_frequencies.size());
    at::Tensor table = at::empty({max_positions, 2 * half}, at::TensorOptions().dtype(at::kFloat));
    float* row = table.mutable_data_ptr<float>();
    for (int position = 0; position < max_positions; ++position, row += 2 * half) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<float>(position) * inverse_frequencies[i];
        row[i] = static_cast<float>(std::cos(angle)) * attention_factor;
        row[half + i] = static_cast<float>(std::sin(angle)) * attention_factor;
      }
    }
    return table.to(device);
  });
}

}  // namespace reprise
