#include "reprise/engine/preemption_rule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace reprise {
namespace {

double RecomputeUs(const PreemptionCosts& costs, int64_t num_tokens) {
  const int64_t num_shown = std::max<int64_t>(num_tokens - costs.num_hidden_tokens, 0);
  return costs.us_per_prompt_token * static_cast<double>(num_shown);
}

double MoveUs(const PreemptionCosts& costs, int64_t bytes, double gb_per_s) {
  return costs.us_per_swap + static_cast<double>(bytes) / (1e3 * gb_per_s);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, PreemptionMode mode) {
  switch (mode) {
    case PreemptionMode::kAuto:
      return out << "auto";
    case PreemptionMode::kRecompute:
      return out << "recompute";
    case PreemptionMode::kSwap:
      return out << "swap";
  }
  return out << "PreemptionMode(" << static_cast<int>(mode) << ")";
}

PreemptionCosts WithMeasuredSteps(PreemptionCosts costs, int num_tokens, double largest_us,
                                  double min_us) {
  // Comparisons that are false for NaN.
  if (!(largest_us > 0) || !(min_us > 0) || std::isinf(largest_us)) return costs;
  // A token costs its share of the largest step, in which GEMMs are the bottleneck. Every step
  // takes at least min_us, and num_hidden_tokens is the number of tokens whose shares fill this
  // time.
  costs.us_per_prompt_token = largest_us / num_tokens;
  costs.num_hidden_tokens =
      static_cast<int>(std::min(min_us / costs.us_per_prompt_token, 1.0 * num_tokens));
  return costs;
}

absl::Status CheckPreemptionCosts(const PreemptionCosts& costs) {
  const auto refusal = [](const char* name, const char* expected, double value) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " of the preemption costs must be ", expected, ": got ", value));
  };
  // Comparisons that are false for NaN.
  if (!(costs.us_per_prompt_token >= 0) || std::isinf(costs.us_per_prompt_token)) {
    return refusal("us_per_prompt_token", "finite and at least 0", costs.us_per_prompt_token);
  }
  if (costs.num_hidden_tokens < 0) {
    return refusal("num_hidden_tokens", "at least 0", costs.num_hidden_tokens);
  }
  if (!(costs.out_gb_per_s > 0)) return refusal("out_gb_per_s", "positive", costs.out_gb_per_s);
  if (!(costs.in_gb_per_s > 0)) return refusal("in_gb_per_s", "positive", costs.in_gb_per_s);
  if (!(costs.us_per_swap >= 0) || std::isinf(costs.us_per_swap)) {
    return refusal("us_per_swap", "finite and at least 0", costs.us_per_swap);
  }
  return absl::OkStatus();
}

bool SwapOutPays(const PreemptionCosts& costs, const PreemptionCase& preempted) {
  return MoveUs(costs, preempted.swap_bytes, costs.out_gb_per_s) +
             MoveUs(costs, preempted.swap_bytes, costs.in_gb_per_s) +
             RecomputeUs(costs, preempted.num_left) <
         RecomputeUs(costs, preempted.num_recomputed);
}

bool SwapInPays(const PreemptionCosts& costs, const PreemptionCase& preempted) {
  return MoveUs(costs, preempted.swap_bytes, costs.in_gb_per_s) +
             RecomputeUs(costs, preempted.num_left) <
         RecomputeUs(costs, preempted.num_recomputed);
}

}  // namespace reprise
