#include "attention/cascade_rule.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace reprise {
namespace {

double Us(double bytes, double tb_per_s) { return bytes / tb_per_s * 1e-6; }

}  // namespace

CascadeCosts H200CascadeCosts() {
  return {.read_tb_per_s = 4.6,
          .reread_tb_per_s = 7.8,
          .products_tflops = 180,
          .call_us = 8,
          .prefix_us = 24,
          .merge_us = 2.6,
          .merge_us_per_token = 0.01};
}

CascadeDecision ChooseCascade(const CascadeShape& shape, const CascadeCosts& costs) {
  if (shape.num_rows < 2) return {.reason = CascadeReason::kFewRows};
  if (shape.common_prefix_len <= 0) return {.reason = CascadeReason::kNoPrefix};
  if (shape.window_left && *shape.window_left + 1 < shape.max_seq_len) {
    return {.reason = CascadeReason::kWindow};
  }
  const double key_bytes = static_cast<double>(shape.num_kv_heads) *
                           (shape.head_dim_qk + shape.head_dim_v) * shape.bytes_per_element;
  const double prefix_bytes = static_cast<double>(shape.common_prefix_len) * key_bytes;
  const double suffix_bytes = static_cast<double>(shape.num_suffix_keys) * key_bytes;
  const double operations = 2.0 * shape.num_tokens * static_cast<double>(shape.common_prefix_len) *
                            shape.num_q_heads * (shape.head_dim_qk + shape.head_dim_v);
  const double once_us = costs.call_us + Us(prefix_bytes + suffix_bytes, costs.read_tb_per_s);
  CascadeDecision decision;
  decision.flat_us = once_us + (shape.num_rows - 1) * Us(prefix_bytes, costs.reread_tb_per_s);
  decision.cascade_us = once_us + costs.prefix_us + Us(operations, costs.products_tflops) +
                        costs.merge_us + costs.merge_us_per_token * shape.num_tokens;
  decision.reason = decision.cascade_us < (1 - costs.least_gain) * decision.flat_us
                        ? CascadeReason::kUse
                        : CascadeReason::kNotQuicker;
  return decision;
}

std::string_view ToString(CascadeReason reason) {
  switch (reason) {
    case CascadeReason::kUse:
      return "use";
    case CascadeReason::kFewRows:
      return "fewer than two rows";
    case CascadeReason::kNoPrefix:
      return "no whole block in common";
    case CascadeReason::kWindow:
      return "the window hides some of the prefix";
    case CascadeReason::kNotQuicker:
      return "not quicker";
  }
  return "unknown";
}

std::string ToString(const CascadeDecision& decision) {
  const std::string times = decision.flat_us == 0
                                ? ""
                                : absl::StrFormat(": %.1f us flat, %.1f us with the prefix apart",
                                                  decision.flat_us, decision.cascade_us);
  if (decision.use()) return absl::StrCat("cascade", times);
  return absl::StrCat("flat: ", std::string(ToString(decision.reason)), times);
}

std::ostream& operator<<(std::ostream& out, const CascadeDecision& decision) {
  return out << ToString(decision);
}

}  // namespace reprise
