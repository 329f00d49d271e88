#include "reprise/runner/sampling/sampling.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/dtype.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/runner/ops/activation_type.h"
#include "reprise/runner/sampling/kept_tokens.h"
#include "reprise/runner/sampling/sampling_rules.h"
#ifdef REPRISE_WITH_CUDA
#include "reprise/runner/ops/cuda_launch.h"
#endif

namespace reprise {
namespace {

int32_t Draw(const float* logits, int vocab_size, float max_logit, const SamplingParams& params,
             int64_t sample_index) {
  const KeptTokens kept =
      WithThreshold(KeptThreshold(logits, vocab_size, max_logit, params), max_logit, params);
  return TokenOf(DrawKept(logits, vocab_size, /*first_token=*/0, kept, params, sample_index));
}

}  // namespace

void SampleOnHost(const SamplingArgs& args) {
  std::vector<float> buffer;
  for (int row = 0; row < args.num_rows; ++row) {
    const int32_t slot = args.sample_slot[row];
    if (slot < 0 || slot >= args.slots.num_slots) {
      args.out[row] = kNotSampled;
      continue;
    }
    const float* logits =
        FloatRow(args.dtype, args.logits, row * args.logits_stride, args.vocab_size, buffer);
    const SamplingParams& params = args.slots.params[slot];
    const bool only_draws = args.sample_offset != nullptr;
    const int64_t sample_index =
        args.slots.sample_index[slot] + (only_draws ? args.sample_offset[row] : 0);
    int32_t token = LargestToken(logits, args.vocab_size);
    if (args.features == SamplingFeatures::kGeneral && !IsGreedy(params) && token != kNanRow) {
      token = Draw(logits, args.vocab_size, logits[token], params, sample_index);
    }
    args.out[row] = token;
    if (only_draws) continue;
    args.slots.last_token[slot] = token == kNanRow ? 0 : token;
    args.slots.sample_index[slot] = sample_index + 1;
  }
}

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
      .sample_offset = args.sample_offset,
      .out = args.out,
      .features = args.features,
  };
#ifdef REPRISE_WITH_CUDA
  if (args.logits.is_cuda()) {
    return LaunchOnCurrentStream(args.logits,
                                 [&](cudaStream_t stream) { return LaunchSampling(raw, stream); });
  }
#endif
  REPRISE_RETURN_IF_ERROR(CheckDevice("logits", args.logits, at::kCPU));
  SampleOnHost(raw);
  return absl::OkStatus();
}

}  // namespace reprise
