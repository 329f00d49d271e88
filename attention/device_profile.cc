#include "reprise/attention/device_profile.h"

#include "absl/types/span.h"
#include "reprise/attention/cuda/device_limits.h"

namespace reprise {
namespace {

constexpr TileScheduleCostField kFields[] = {
    {"decode_tile", &TileScheduleCosts::decode_tile, 0},
    {"tile", &TileScheduleCosts::tile, 0},
    {"warpgroup_tile", &TileScheduleCosts::warpgroup_tile, 0},
    {"border", &TileScheduleCosts::border, 0},
    {"border_percent", &TileScheduleCosts::border_percent, 0},
    {"warpgroup_border", &TileScheduleCosts::warpgroup_border, 0},
    {"merge", &TileScheduleCosts::merge, 0},
    {"warpgroup_combine", &TileScheduleCosts::warpgroup_combine, 0},
    {"combines_per_step_few_rows", &TileScheduleCosts::combines_per_step_few_rows, 1},
    {"combines_per_step", &TileScheduleCosts::combines_per_step, 1},
    {"combine_level_steps", &TileScheduleCosts::combine_level_steps, 0},
    {"joint_rows", &TileScheduleCosts::joint_rows, 1},
    {"joint_splits", &TileScheduleCosts::joint_splits, 1},
    {"joint_keys", &TileScheduleCosts::joint_keys, 0},
    {"lone_loss_percent", &TileScheduleCosts::lone_loss_percent, 0},
    {"joined_steps", &TileScheduleCosts::joined_steps, 0},
    {"joined_steps_beside_prompts", &TileScheduleCosts::joined_steps_beside_prompts, 0},
    {"joined_short_rows", &TileScheduleCosts::joined_short_rows, 0},
    {"both_ways_steps", &TileScheduleCosts::both_ways_steps, 0},
    {"cluster_steps", &TileScheduleCosts::cluster_steps, 0},
    {"sms_of_wide_range", &TileScheduleCosts::sms_of_wide_range, 0},
    {"wide_keys", &TileScheduleCosts::wide_keys, 0},
};

// All fields are int, except the array clusters_of.
static_assert(sizeof(TileScheduleCosts) == sizeof(kFields) / sizeof(kFields[0]) * sizeof(int) +
                                               sizeof(TileScheduleCosts::clusters_of),
              "kFields has all fields");

}  // namespace

absl::Span<const TileScheduleCostField> TileScheduleCostFields() { return kFields; }

DeviceProfile ProfileOf(const DeviceLimits&) { return H200Profile(); }

}  // namespace reprise
