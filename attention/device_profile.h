// Costs measured on a GPU, as data for the plan of the tile schedule and for the cascade rule.
//
//   REPRISE_ASSIGN_OR_RETURN(const DeviceLimits limits, DeviceLimitsOf(device));
//   const DeviceProfile profile = ProfileOf(limits);
//   TileScheduleOptions options = {..., .device = limits, .costs = profile.tile_schedule};
//   ChooseCascade(shape, profile.cascade_launches);
//
// A profile affects speed and rounding, not correctness. To fit a new GPU, measure it with
// tests/benchmarks/device (attention_bench, shared_prefix), write a function like H200Profile(),
// and return its value from ProfileOf().
//
// Thread safety: values.

#ifndef REPRISE_ATTENTION_DEVICE_PROFILE_H_
#define REPRISE_ATTENTION_DEVICE_PROFILE_H_

#include <array>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/attention/cuda/device_limits.h"

namespace reprise {

// Costs with which the tile schedule divides attention among the CTAs (plan and builder). Unless a
// field's name or comment gives another unit, the unit is an eighth of the time of a KV tile of 64
// keys (kStepCost in attention/tile_schedule/tile_schedule.h). The estimates are in
// attention/tile_schedule/tile_schedule_cut.h.
struct TileScheduleCosts {
  // Fixed cost of a Q tile, without its keys: loading q, a first KV tile whose load is not hidden,
  // writing the result. One value per kernel tile size: decode tiles (16 rows), other tiles, and
  // warpgroup tiles (128 rows).
  int decode_tile = 0;
  int tile = 0;
  int warpgroup_tile = 0;

  // A Stream-K queue takes longer than its part of all costs, because its CTA has one more unit and
  // waits for the first keys of that unit. The extra time, without combines, is at least `border`,
  // and at least border_percent of the queue's part, divided by the number of Q tiles per queue.
  // Warpgroup tiles use `warpgroup_border` only.
  int border = 0;
  int border_percent = 0;
  int warpgroup_border = 0;
  // Cost of a combine through global memory.
  int merge = 0;
  int warpgroup_combine = 0;

  // Partials combined in the time of a KV tile. The first value applies to tiles of at most 8 live
  // rows. Half of it applies to other warpgroup tiles, and to other tiles of kernels that can
  // combine cooperatively. The second value applies to all other tiles.
  int combines_per_step_few_rows = 0;
  int combines_per_step = 0;
  // Maximum number of KV tiles by which the builder lengthens splits, if one combine level then
  // suffices.
  int combine_level_steps = 0;
  // In kernels that support it, all CTAs that have splits of a Q tile combine it cooperatively if
  // it has at least joint_rows query rows, or at least joint_splits splits of at least joint_keys
  // keys on average. CombinesCooperatively() has further limits on the number of splits. With fewer
  // splits, a single CTA combines them quickly. With shorter splits, all CTAs reach the combine
  // together and contend for instruction fetches.
  int joint_rows = 0;
  int joint_splits = 0;
  int joint_keys = 0;

  // An SM with a single CTA takes this much longer than a fully occupied SM to read the same bytes.
  int lone_loss_percent = 0;

  // The kernel for long rows also processes the short rows if both together have at most this many
  // KV tiles per CTA, by the batch's bounds; 0: never. It reads keys more slowly than the kernel
  // for short rows, but a second kernel adds start and end latency. Set both joined_steps fields to
  // 0 for cards without warpgroup kernels.
  int joined_steps = 0;
  // The same limit if the long rows may have at least one Q tile per three rows of the batch, for
  // head dims above 64. Reads and MMAs then overlap in one kernel.
  int joined_steps_beside_prompts = 0;
  // The kernel for long rows also processes all rows of a batch if the maximum query length is at
  // most this multiple of the maximum length of short rows.
  int joined_short_rows = 0;
  // If short rows have fewer KV tiles than this, no CTA processes its round-robin units in reverse.
  // Such rows gain less from the reversed order than a CTA loses by finding its first unit later.
  int both_ways_steps = 0;

  // [n]: how many clusters of n decode CTAs can be resident at once, two CTAs per SM, for n from 2
  // to 8. 0: clusters of n are not used. A cluster must fit into one GPC, so on an H200 only 240 of
  // 264 CTAs can be in clusters of 8. attention_bench prints the values of a card.
  std::array<int, 9> clusters_of = {};
  // Maximum number of KV tiles per split in a cluster of more than two CTAs. Such clusters leave
  // some CTAs idle.
  int cluster_steps = 0;

  // Wide CTAs may be used if there are at least this many SMs per decode tile and KV head
  // (KernelSchedule::max_wide_rows). 0: never. Plans for cards with less than 227 KB of shared
  // memory per CTA do not use them.
  int sms_of_wide_range = 0;
  // Wide CTAs are used only for Q tiles with more keys than this.
  int wide_keys = 0;
};

// Describes a field of TileScheduleCosts.
struct TileScheduleCostField {
  absl::string_view name;
  int TileScheduleCosts::*field;
  int least;  // the smallest valid value
};

// All fields except clusters_of.
absl::Span<const TileScheduleCostField> TileScheduleCostFields();

// Costs of the attention kernels over a shared prefix (attention/merge/cascade_rule.h).
struct CascadeCosts {
  double read_tb_per_s = 0;    // from memory
  double reread_tb_per_s = 0;  // bytes that another row has just read
  // If the prefix is read separately: the rates for bytes that another tile has just read, and for
  // the rows' own keys. 0: the rates above.
  double tile_reread_tb_per_s = 0;
  double suffix_tb_per_s = 0;
  double products_tflops = 0;  // for the pass over the prefix; 0: hidden by reads
  double call_us = 0;          // per call, independent of the bytes read
  double prefix_us = 0;        // per pass over the prefix, independent of the bytes read
  double merge_us = 0;  // per merge of prefix and suffix; merge_us_per_token: per query in it
  double merge_us_per_token = 0;
  double min_gain = 0.05;  // cascade must save at least this fraction of the flat time
};

struct DeviceProfile {
  TileScheduleCosts tile_schedule;
  // For the general kernels (tier 1): three launches, for the prefix, the suffixes and the merge.
  CascadeCosts cascade_launches;
  // For a single launch: decodes with a tile schedule that was planned for a shared prefix in small
  // tiles (SharedPrefix::kTaken, SharedTiles::kSmall of
  // attention/tile_schedule/tile_schedule_plan.h).
  CascadeCosts cascade_costs;
};

// Measured on one H200. docs/performance.md has the measurements.
constexpr DeviceProfile H200Profile() {
  return {
      // Small tiles share their SM with other CTAs, which progress in the meantime, so their fixed
      // cost is low. Warpgroup tiles took 17,000 cycles without their keys, and 2,600 per KV tile.
      // The cost here is lower, so that queues also stay balanced in keys.
      .tile_schedule =
          {.decode_tile = 4,
           .tile = 8,
           .warpgroup_tile = 24,
           .border = 8,
           .border_percent = 12,
           .warpgroup_border = 24,
           .merge = 12,
           .warpgroup_combine = 56,
           .combines_per_step_few_rows = 20,
           .combines_per_step = 5,
           .combine_level_steps = 2,
           .joint_rows = 8,
           .joint_splits = 16,
           .joint_keys = 384,
           .lone_loss_percent = 12,
           .joined_steps = 40,
           .joined_steps_beside_prompts = 256,
           .joined_short_rows = 4,
           .both_ways_steps = 8,
           // CUDA reports the values for 2, 4 and 8. They allow two divisions of the SMs
           // into GPCs of 12 to 18 SMs. The other values are lower bounds for both
           // divisions.
           .clusters_of = {0, 0, 132, 84, 62, 46, 36, 30, 30},
           .cluster_steps = 4,
           .sms_of_wide_range = 32,
           .wide_keys = 4096},
      .cascade_launches = {.read_tb_per_s = 4.6,
                           .reread_tb_per_s = 7.8,
                           .products_tflops = 180,
                           .call_us = 8,
                           .prefix_us = 24,
                           .merge_us = 2.6,
                           .merge_us_per_token = 0.01},
      .cascade_costs = {.read_tb_per_s = 4.6,
                        .reread_tb_per_s = 8.4,
                        .tile_reread_tb_per_s = 4.4,
                        .suffix_tb_per_s = 3.8,
                        .call_us = 8,
                        .prefix_us = 7.5,
                        .merge_us_per_token = 0.145},
  };
}

// The profile for a card with these limits: the profile of the most similar measured card. So far,
// H200Profile() for every card.
DeviceProfile ProfileOf(const DeviceLimits& limits);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_DEVICE_PROFILE_H_
