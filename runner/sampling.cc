#include "runner/sampling.h"

#include "absl/strings/str_cat.h"
#include "base/shape_check.h"
#include "base/status_macros.h"
#include "base/torch_dtype.h"
#include "runner/ops/activation_type.h"
#include "runner/sampling_args.h"
#include "runner/sampling_host.h"
#ifdef REPRISE_WITH_CUDA
#include "runner/ops/cuda_launch.h"
#include "runner/sampling_kernel.h"
#endif

namespace reprise {

absl::Status Sample(const SampleArgs& args) {
  ShapeChecker dims;
  REPRISE_RETURN_IF_ERROR(dims.Check("logits", args.logits, {"num_rows", "vocab_size"}));
  REPRISE_RETURN_IF_ERROR(CheckActivationType("logits", args.logits));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("logits", args.logits));
  if (args.logits.size(0) == 0) return absl::OkStatus();
  if (args.logits.size(1) == 0) {
    return absl::InvalidArgumentError("logits must have a vocabulary: expected >= 1, got 0");
  }
  if (args.sample_slot == nullptr || args.out == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(args.out == nullptr ? "out" : "sample_slot", " must not be null"));
  }
  const SamplingArgs raw = {
      .dtype = *FromScalarType(args.logits.scalar_type()),
      .logits = args.logits.const_data_ptr(),
      .logits_stride = args.logits.stride(0),
      .num_rows = static_cast<int>(args.logits.size(0)),
      .vocab_size = static_cast<int>(args.logits.size(1)),
      .slots = args.slots,
      .sample_slot = args.sample_slot,
      .out = args.out,
      .features = args.features,
  };
#ifdef REPRISE_WITH_CUDA
  if (args.logits.is_cuda()) {
    return LaunchOnCurrentStream("Sample", args.logits,
                                 [&](cudaStream_t stream) { return LaunchSampling(raw, stream); });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("logits", args.logits, at::kCPU));
  SampleOnHost(raw);
  return absl::OkStatus();
}

}  // namespace reprise
