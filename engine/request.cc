#include "reprise/engine/request.h"

#include <algorithm>

namespace reprise {

SamplingParams ToSamplingParams(const SamplingOptions& options, uint64_t seed) {
  return {.temperature = options.temperature,
          .top_k = options.top_k,
          .top_p = options.top_p,
          .min_p = options.min_p,
          .seed = seed};
}

LogitsRequest ToLogitsRequest(const Request& request) {
  const SamplingOptions& sampling = request.sampling;
  const bool is_forced = !request.forced_tokens.empty();
  return {.params = {.repetition_penalty = sampling.repetition_penalty,
                     .presence_penalty = sampling.presence_penalty,
                     .frequency_penalty = sampling.frequency_penalty,
                     .num_biases = static_cast<int32_t>(sampling.biases.size()),
                     .num_log_probs = is_forced ? -1 : request.num_log_probs,
                     .num_known_log_probs = std::max(is_forced ? request.num_log_probs : -1,
                                                     request.num_prompt_log_probs)},
          .biases = sampling.biases,
          .prompt = request.prompt,
          .stages = request.logits_stages};
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
