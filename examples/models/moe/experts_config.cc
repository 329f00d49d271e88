#include "reprise/models/moe/experts_config.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

absl::Status CheckAtLeast(const char* name, int64_t minimum, int64_t value) {
  if (value >= minimum) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be at least ", minimum, ": got ", value));
}

absl::Status CheckAtMost(const char* name, const char* bound, int64_t maximum, int64_t value) {
  if (value <= maximum) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must not exceed ", bound,
                                                 ": expected at most ", maximum, ", got ", value));
}

absl::Status CheckGroups(const ExpertsConfig& config) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_groups", 1, config.num_groups));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_chosen_groups", 1, config.num_chosen_groups));
  REPRISE_RETURN_IF_ERROR(
      CheckAtMost("num_chosen_groups", "num_groups", config.num_groups, config.num_chosen_groups));
  if (config.num_experts % config.num_groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_groups must divide the number of experts: expected a divisor of ",
                     config.num_experts, ", got ", config.num_groups));
  }
  const int64_t group_size = config.num_experts / config.num_groups;
  if (config.num_groups > 1 && config.group_score == GroupScore::kTopTwo && group_size < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_groups must leave two experts per group, as the two largest scores of a "
                     "group are added: expected at most ",
                     config.num_experts / 2, ", got ", config.num_groups));
  }
  return CheckAtMost("num_chosen", "the number of experts in the chosen groups",
                     config.num_chosen_groups * group_size, config.num_chosen);
}

}  // namespace

absl::Status CheckExperts(const ExpertsConfig& config) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_experts", 1, config.num_experts));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_chosen", 1, config.num_chosen));
  REPRISE_RETURN_IF_ERROR(
      CheckAtMost("num_chosen", "num_experts", config.num_experts, config.num_chosen));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("inner_size", 1, config.inner_size));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("shared_inner_size", 0, config.shared_inner_size));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_columns", 1, config.block_columns));
  REPRISE_RETURN_IF_ERROR(CheckGroups(config));
  if (!std::isfinite(config.scale) || config.scale <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("scale must be positive and finite: got ", config.scale));
  }
  if (!std::isfinite(config.sum_epsilon) || config.sum_epsilon < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sum_epsilon must not be negative and must be finite: got ", config.sum_epsilon));
  }
  if (config.shared_gate && config.shared_inner_size == 0) {
    return absl::InvalidArgumentError(
        "shared_gate requires a shared expert: expected shared_inner_size above 0, got 0");
  }
  if (config.expert_bias && config.files == ExpertFiles::kSeparate) {
    return absl::InvalidArgumentError(
        "expert_bias requires stacked experts: expected kStacked or kStackedHalves, got kSeparate");
  }
  return absl::OkStatus();
}

}  // namespace reprise
