#include "engine/request.h"

namespace reprise {

SamplingParams ToSamplingParams(const SamplingOptions& options, uint64_t seed) {
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .seed = seed};
}

std::string_view FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCacheFull:
      return "cache_full";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
    case FinishReason::kRefused:
      return "refused";
  }
  return "unknown";
}

}  // namespace reprise
