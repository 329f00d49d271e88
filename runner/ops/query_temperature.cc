#include "runner/ops/query_temperature.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "runner/ops/activation_type.h"
#ifdef REPRISE_WITH_CUDA
#include "base/torch_dtype.h"
#include "runner/ops/cuda_launch.h"
#include "runner/ops/query_temperature_kernel.h"
#endif

namespace reprise {
namespace {

// Tokens that are worth a task of their own.
constexpr int64_t kGrainTokens = 16;

template <typename T>
void TemperOnHost(const at::Tensor& q, const at::Tensor& positions,
                  const QueryTemperature& temperature) {
  const int32_t* const position = positions.const_data_ptr<int32_t>();
  at::parallel_for(0, q.size(0), kGrainTokens, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      const float factor = TemperatureAt(std::max(position[token], 0), temperature.attn_scale,
                                         temperature.floor_scale);
      if (factor == 1.0f) continue;
      for (int64_t head = 0; head < q.size(1); ++head) {
        T* const x = q.mutable_data_ptr<T>() + token * q.stride(0) + head * q.stride(1);
        for (int64_t i = 0; i < q.size(2); ++i) {
          x[i] = static_cast<T>(static_cast<float>(x[i]) * factor);
        }
      }
    }
  });
}

#ifdef REPRISE_WITH_CUDA
absl::Status TemperOnGpu(const at::Tensor& q, const at::Tensor& positions,
                         const QueryTemperature& temperature) {
  const QueryTemperatureParams params = {
      .dtype = *FromScalarType(q.scalar_type()),
      .q = {.data = q.mutable_data_ptr(),
            .token_stride = q.stride(0),
            .head_stride = q.stride(1),
            .num_heads = static_cast<int>(q.size(1))},
      .num_tokens = static_cast<int>(q.size(0)),
      .head_dim = static_cast<int>(q.size(2)),
      .positions = positions.const_data_ptr<int32_t>(),
      .temperature = temperature,
  };
  return LaunchOnCurrentStream("TemperQueries", q, [&](cudaStream_t stream) {
    return LaunchQueryTemperature(params, stream);
  });
}
#endif

}  // namespace

absl::Status TemperQueries(const at::Tensor& q, const at::Tensor& positions,
                           const QueryTemperature& temperature) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("q", q, {"num_tokens", "num_q_heads", "head_dim"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("q", q));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("q", q));
  REPRISE_RETURN_IF_ERROR(dims.Check("positions", positions, {"num_tokens"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckDevice("positions", positions, q.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("positions", positions));
  if (!(temperature.floor_scale > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("floor_scale must be positive: got ", temperature.floor_scale));
  }
  if (q.numel() == 0) return absl::OkStatus();

#ifdef REPRISE_WITH_CUDA
  if (q.is_cuda()) return TemperOnGpu(q, positions, temperature);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("q", q, at::kCPU));
  VisitActivationType(q.scalar_type(),
                      [&](auto zero) { TemperOnHost<decltype(zero)>(q, positions, temperature); });
  return absl::OkStatus();
}

}  // namespace reprise
