#include "runner/ops/gelu.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>

#include "base/shape_check.h"
#include "base/status_macros.h"
#include "runner/ops/activation_type.h"
#include "runner/ops/gelu_value.h"
#ifdef REPRISE_WITH_CUDA
#include "base/torch_dtype.h"
#include "runner/ops/cuda_launch.h"
#include "runner/ops/gelu_kernel.h"
#endif

namespace reprise {
namespace {

// Elements that are worth a task of their own: an erfc each.
constexpr int64_t kGrainElements = 4096;

template <typename T>
void GeluOnHost(const at::Tensor& x) {
  const int64_t size = x.size(1);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / size);
  at::parallel_for(0, x.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* const values = x.mutable_data_ptr<T>() + row * x.stride(0);
      for (int64_t i = 0; i < size; ++i) {
        values[i] = static_cast<T>(GeluValue(static_cast<float>(values[i])));
      }
    }
  });
}

#ifdef REPRISE_WITH_CUDA
absl::Status GeluOnGpu(const at::Tensor& x) {
  const GeluParams params = {.dtype = *FromScalarType(x.scalar_type()),
                             .x = x.mutable_data_ptr(),
                             .stride = x.stride(0),
                             .num_rows = static_cast<int>(x.size(0)),
                             .size = static_cast<int>(x.size(1))};
  return LaunchOnCurrentStream("Gelu", x,
                               [&](cudaStream_t stream) { return LaunchGelu(params, stream); });
}
#endif

}  // namespace

absl::Status Gelu(const at::Tensor& x) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("x", x, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("x", x));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("x", x));
  if (x.numel() == 0) return absl::OkStatus();

#ifdef REPRISE_WITH_CUDA
  if (x.is_cuda()) return GeluOnGpu(x);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, at::kCPU));
  VisitActivationType(x.scalar_type(), [&](auto zero) { GeluOnHost<decltype(zero)>(x); });
  return absl::OkStatus();
}

}  // namespace reprise
