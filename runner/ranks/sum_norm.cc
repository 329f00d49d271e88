#include "reprise/runner/ranks/sum_norm.h"

#include <optional>

#include "reprise/base/status_macros.h"
#include "reprise/distributed/share.h"
#include "reprise/runner/ops/norm.h"
#include "reprise/runner/ranks/over_ranks.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#include "reprise/runner/ranks/sum_norm_args.h"
#endif

namespace reprise {

absl::Status SumAddRmsNorm(Collectives* collectives, const LinearContext& context,
                           const at::Tensor& delta, const at::Tensor& residual,
                           const at::Tensor& weight, float eps, const at::Tensor& out,
                           NormWeight form) {
#ifdef REPRISE_WITH_CUDA
  const int world = RanksOf(collectives).world;
  if (world > 1 && delta.is_cuda() && AreSummedByAllReduce(world, context)) {
    REPRISE_ASSIGN_OR_RETURN(const std::optional<PushAllReduceArgs> sum,
                             collectives->PushAllReduce(delta));
    if (sum.has_value()) {
      REPRISE_ASSIGN_OR_RETURN(const NormArgs norm,
                               AddRmsNormArgs(delta, residual, weight, eps, out, form));
      bool is_served = false;
      REPRISE_RETURN_IF_ERROR(LaunchOnCurrentStream(delta, [&](cudaStream_t stream) {
        is_served = CanSumInNorm(norm);
        return is_served ? LaunchSumNorm({.norm = norm, .sum = *sum}, stream) : absl::OkStatus();
      }));
      if (is_served) return absl::OkStatus();
    }
  }
#endif
  REPRISE_RETURN_IF_ERROR(SumOverRanks(collectives, context, delta));
  return AddRmsNorm(delta, residual, weight, eps, out, form);
}

}  // namespace reprise
