#include "reprise/runner/sampling/logits_params.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckFinite(const char* name, float value) {
  if (std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be finite: got ", value));
}

}  // namespace

absl::Status CheckLogitsParams(const LogitsParams& params, absl::Span<const LogitBias> biases,
                               int vocab_size) {
  REPRISE_RETURN_IF_ERROR(CheckFinite("repetition_penalty", params.repetition_penalty));
  if (!(params.repetition_penalty > 0.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("repetition_penalty must be above 0: got ", params.repetition_penalty));
  }
  REPRISE_RETURN_IF_ERROR(CheckFinite("presence_penalty", params.presence_penalty));
  REPRISE_RETURN_IF_ERROR(CheckFinite("frequency_penalty", params.frequency_penalty));
  REPRISE_RETURN_IF_ERROR(CheckBetween("num_log_probs", params.num_log_probs, -1, kMaxTopLogProbs));
  REPRISE_RETURN_IF_ERROR(
      CheckBetween("num_known_log_probs", params.num_known_log_probs, -1, kMaxTopLogProbs));
  if (params.num_biases != static_cast<int64_t>(biases.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_biases must equal the number of biases: expected ", biases.size(),
                     ", got ", params.num_biases));
  }
  std::vector<int32_t> tokens;
  tokens.reserve(biases.size());
  for (const LogitBias& bias : biases) {
    if (bias.token < 0 || bias.token >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("biases must name tokens in [0, ", vocab_size, "): got ", bias.token));
    }
    if (!(bias.bias < std::numeric_limits<float>::infinity())) {
      return absl::InvalidArgumentError(absl::StrCat("biases must be finite or -inf: got ",
                                                     bias.bias, " for token ", bias.token));
    }
    tokens.push_back(bias.token);
  }
  std::sort(tokens.begin(), tokens.end());
  const auto twice = std::adjacent_find(tokens.begin(), tokens.end());
  if (twice == tokens.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("biases must name distinct tokens: got ", *twice, " twice"));
}

absl::Status CheckLogitsSlots(const LogitsSlots& slots) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("slots.num_slots", slots.num_slots, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("slots.max_biases", slots.max_biases, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("slots.vocab_size", slots.vocab_size, 1));
  if (slots.num_slots == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("slots.params", slots.params));
  if (slots.max_biases > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("slots.biases", slots.biases));
  if (reinterpret_cast<uintptr_t>(slots.counts) % 16 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("slots.counts: expected a multiple of 16, got ",
                                                 reinterpret_cast<uintptr_t>(slots.counts)));
}

}  // namespace reprise
