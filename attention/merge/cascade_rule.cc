#include "reprise/attention/merge/cascade_rule.h"

#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace reprise {
namespace {

double Us(double bytes, double tb_per_s) { return bytes / tb_per_s * 1e-6; }

}  // namespace

CascadeDecision ChooseCascade(const CascadeShape& shape, const CascadeCosts& costs) {
  if (shape.num_rows < 2) return {.reason = CascadeReason::kFewRows};
  if (shape.common_prefix_len <= 0) return {.reason = CascadeReason::kNoPrefix};
  if (shape.window_left && *shape.window_left + 1 < shape.max_seq_len) {
    return {.reason = CascadeReason::kWindow};
  }
  const double key_bytes = static_cast<double>(shape.num_kv_heads) *
                           (shape.head_dim_qk + (shape.v_in_k ? 0 : shape.head_dim_v)) *
                           shape.bytes_per_element;
  const double prefix_bytes = static_cast<double>(shape.common_prefix_len) * key_bytes;
  const double suffix_bytes = static_cast<double>(shape.num_suffix_keys) * key_bytes;
  const double operations = 2.0 * shape.num_tokens * static_cast<double>(shape.common_prefix_len) *
                            shape.num_q_heads * (shape.head_dim_qk + shape.head_dim_v);
  const double products_us = costs.products_tflops > 0 ? Us(operations, costs.products_tflops) : 0;
  const int num_tiles =
      shape.tile_queries > 0 ? (shape.num_tokens + shape.tile_queries - 1) / shape.tile_queries : 1;
  const auto given = [](double rate, double otherwise) { return rate > 0 ? rate : otherwise; };
  const double prefix_us = costs.call_us + Us(prefix_bytes, costs.read_tb_per_s);
  CascadeDecision decision;
  decision.flat_us = prefix_us + Us(suffix_bytes, costs.read_tb_per_s) +
                     (shape.num_rows - 1) * Us(prefix_bytes, costs.reread_tb_per_s);
  decision.cascade_us =
      prefix_us + Us(suffix_bytes, given(costs.suffix_tb_per_s, costs.read_tb_per_s)) +
      (num_tiles - 1) * Us(prefix_bytes, given(costs.tile_reread_tb_per_s, costs.reread_tb_per_s)) +
      costs.prefix_us + products_us + costs.merge_us + costs.merge_us_per_token * shape.num_tokens;
  decision.reason = decision.cascade_us < (1 - costs.min_gain) * decision.flat_us
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
    case CascadeReason::kManyQueries:
      return "a row of several queries";
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
