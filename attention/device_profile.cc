#include "reprise/attention/device_profile.h"

#include "absl/types/span.h"
#include "reprise/attention/cuda/device_limits.h"

namespace reprise {
namespace {

constexpr WorkMapCostField kFields[] = {
    {"decode_tile", &WorkMapCosts::decode_tile, 0},
    {"tile", &WorkMapCosts::tile, 0},
    {"warpgroup_tile", &WorkMapCosts::warpgroup_tile, 0},
    {"border", &WorkMapCosts::border, 0},
    {"border_percent", &WorkMapCosts::border_percent, 0},
    {"warpgroup_border", &WorkMapCosts::warpgroup_border, 0},
    {"merge", &WorkMapCosts::merge, 0},
    {"warpgroup_merge", &WorkMapCosts::warpgroup_merge, 0},
    {"merges_per_step_few_rows", &WorkMapCosts::merges_per_step_few_rows, 1},
    {"merges_per_step", &WorkMapCosts::merges_per_step, 1},
    {"merge_level_steps", &WorkMapCosts::merge_level_steps, 0},
    {"joint_rows", &WorkMapCosts::joint_rows, 1},
    {"joint_pieces", &WorkMapCosts::joint_pieces, 1},
    {"joint_keys", &WorkMapCosts::joint_keys, 0},
    {"lone_loss_percent", &WorkMapCosts::lone_loss_percent, 0},
    {"joined_steps", &WorkMapCosts::joined_steps, 0},
    {"joined_steps_beside_prompts", &WorkMapCosts::joined_steps_beside_prompts, 0},
    {"joined_short_rows", &WorkMapCosts::joined_short_rows, 0},
    {"both_ways_steps", &WorkMapCosts::both_ways_steps, 0},
    {"cluster_steps", &WorkMapCosts::cluster_steps, 0},
    {"sms_of_wide_range", &WorkMapCosts::sms_of_wide_range, 0},
    {"wide_keys", &WorkMapCosts::wide_keys, 0},
};

// All fields are int, except the array clusters_of.
static_assert(sizeof(WorkMapCosts) == sizeof(kFields) / sizeof(kFields[0]) * sizeof(int) +
                                          sizeof(WorkMapCosts::clusters_of),
              "kFields has all fields");

}  // namespace

absl::Span<const WorkMapCostField> WorkMapCostFields() { return kFields; }

DeviceProfile ProfileOf(const DeviceLimits&) { return H200Profile(); }

}  // namespace reprise
