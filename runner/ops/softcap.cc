#include "runner/ops/softcap.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "runner/ops/activation_type.h"
#ifdef REPRISE_WITH_CUDA
#include "base/torch_dtype.h"
#include "runner/ops/cuda_launch.h"
#include "runner/ops/softcap_kernel.h"
#endif

namespace reprise {
namespace {

// Elements that are worth a task of their own: a tanh each.
constexpr int64_t kGrainElements = 4096;

template <typename T>
void SoftcapOnHost(const at::Tensor& x, float cap) {
  const int64_t size = x.size(1);
  // A row of logits is long: its pieces are the tasks.
  at::parallel_for(0, x.size(0) * size, kGrainElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end;) {
      T* const row = x.mutable_data_ptr<T>() + i / size * x.stride(0);
      const int64_t row_end = std::min(end, (i / size + 1) * size);
      for (; i < row_end; ++i) {
        T& value = row[i % size];
        value = static_cast<T>(cap * std::tanh(static_cast<float>(value) / cap));
      }
    }
  });
}

#ifdef REPRISE_WITH_CUDA
absl::Status SoftcapOnGpu(const at::Tensor& x, float cap) {
  const SoftcapParams params = {.dtype = *FromScalarType(x.scalar_type()),
                                .x = x.mutable_data_ptr(),
                                .stride = x.stride(0),
                                .num_rows = static_cast<int>(x.size(0)),
                                .size = static_cast<int>(x.size(1)),
                                .cap = cap};
  return LaunchOnCurrentStream("Softcap", x,
                               [&](cudaStream_t stream) { return LaunchSoftcap(params, stream); });
}
#endif

}  // namespace

absl::Status Softcap(const at::Tensor& x, float cap) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("x", x, {"num_rows", "size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("x", x));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("x", x));
  if (!(cap > 0) || !std::isfinite(cap)) {
    return absl::InvalidArgumentError(absl::StrCat("cap must be positive and finite: got ", cap));
  }
  if (x.numel() == 0) return absl::OkStatus();

#ifdef REPRISE_WITH_CUDA
  if (x.is_cuda()) return SoftcapOnGpu(x, cap);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("x", x, at::kCPU));
  VisitActivationType(x.scalar_type(), [&](auto zero) { SoftcapOnHost<decltype(zero)>(x, cap); });
  return absl::OkStatus();
}

}  // namespace reprise
