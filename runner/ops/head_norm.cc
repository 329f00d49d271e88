#include "reprise/runner/ops/head_norm.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "reprise/base/parallel/parallel_for.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/activation_type.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/cuda_launch.h"
#include "reprise/runner/ops/head_norm_args.h"
#endif

namespace reprise {
namespace {

// Minimum number of elements per task.
constexpr int64_t kGrainElements = 16384;

template <typename T>
void NormaliseHead(T* x, const T* weight, int64_t head_dim, const HeadNormOptions& options) {
  double sum = 0;
  for (int64_t i = 0; i < head_dim; ++i) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  const float mean = static_cast<float>(sum / static_cast<double>(head_dim));
  const float scale = 1.0f / std::sqrt(mean + options.eps);
  if (weight != nullptr && options.form == NormWeight::kOnePlus) {
    for (int64_t i = 0; i < head_dim; ++i) {
      x[i] =
          static_cast<T>(static_cast<float>(x[i]) * scale * (1.0f + static_cast<float>(weight[i])));
    }
    return;
  }
  for (int64_t i = 0; i < head_dim; ++i) {
    const T normalised = static_cast<T>(static_cast<float>(x[i]) * scale);
    x[i] = weight == nullptr
               ? normalised
               : static_cast<T>(static_cast<float>(normalised) * static_cast<float>(weight[i]));
  }
}

template <typename T>
void NormaliseOnHost(const at::Tensor& heads, const std::optional<at::Tensor>& weight,
                     const HeadNormOptions& options) {
  const int64_t head_dim = heads.size(2);
  const T* const weights = weight.has_value() ? weight->const_data_ptr<T>() : nullptr;
  const int64_t row = std::max<int64_t>(1, heads.size(1) * head_dim);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / row);
  ParallelFor(0, heads.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = 0; head < heads.size(1); ++head) {
        T* const x = heads.mutable_data_ptr<T>() + token * heads.stride(0) + head * heads.stride(1);
        NormaliseHead(x, weights, head_dim, options);
      }
    }
  });
}

#ifdef REPRISE_WITH_CUDA
HeadsView ViewOf(const at::Tensor& heads) {
  return {.data = heads.mutable_data_ptr(),
          .token_stride = heads.stride(0),
          .head_stride = heads.stride(1),
          .num_heads = static_cast<int>(heads.size(1))};
}

absl::Status NormaliseOnGpu(const at::Tensor& q, const at::Tensor& k,
                            const HeadNormOptions& options) {
  const auto pointer = [](const std::optional<at::Tensor>& weight) {
    return weight.has_value() ? weight->const_data_ptr() : nullptr;
  };
  const HeadNormArgs args = {.dtype = *FromScalarType(q.scalar_type()),
                             .q = ViewOf(q),
                             .k = ViewOf(k),
                             .q_weight = pointer(options.q_weight),
                             .k_weight = pointer(options.k_weight),
                             .num_tokens = static_cast<int>(q.size(0)),
                             .head_dim = static_cast<int>(q.size(2)),
                             .eps = options.eps,
                             .form = options.form};
  return LaunchOnCurrentStream(q,
                               [&](cudaStream_t stream) { return LaunchHeadNorm(args, stream); });
}
#endif

absl::Status CheckWeight(ShapeChecker& dims, const char* name,
                         const std::optional<at::Tensor>& weight, const at::Tensor& q) {
  if (!weight.has_value()) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(dims.Check(name, *weight, {"head_dim"}, q.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice(name, *weight, q.device()));
  return CheckLastStrideIsOne(name, *weight);
}

}  // namespace

absl::Status CheckHeadNorm(const at::Tensor& q, const at::Tensor& k,
                           const HeadNormOptions& options) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("q", q, {"num_tokens", "num_q_heads", "head_dim"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("q", q));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("q", q));
  REPRISE_RETURN_IF_ERROR(
      dims.Check("k", k, {"num_tokens", "num_kv_heads", "head_dim"}, q.scalar_type()));
  REPRISE_RETURN_IF_ERROR(CheckDevice("k", k, q.device()));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("k", k));
  REPRISE_RETURN_IF_ERROR(CheckWeight(dims, "q_weight", options.q_weight, q));
  return CheckWeight(dims, "k_weight", options.k_weight, q);
}

absl::Status NormaliseHeads(const at::Tensor& q, const at::Tensor& k,
                            const HeadNormOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckHeadNorm(q, k, options));
  if (q.numel() == 0 && k.numel() == 0) return absl::OkStatus();

#ifdef REPRISE_WITH_CUDA
  if (q.is_cuda()) return NormaliseOnGpu(q, k, options);
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("q", q, at::kCPU));
  VisitActivationType(q.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    NormaliseOnHost<T>(q, options.q_weight, options);
    NormaliseOnHost<T>(k, options.k_weight, options);
  });
  return absl::OkStatus();
}

}  // namespace reprise
