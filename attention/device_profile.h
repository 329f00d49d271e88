// Costs measured on a GPU, as data for the work map's plan and the cascade rule.
//
//   REPRISE_ASSIGN_OR_RETURN(const DeviceLimits limits, DeviceLimitsOf(device));
//   const DeviceProfile profile = ProfileOf(limits);
//   WorkMapOptions options = {..., .device = limits, .costs = profile.work_map};
//   ChooseCascade(shape, profile.cascade_launches);
//
// A profile affects speed and rounding. Results are correct with any profile on any GPU. To fit a new GPU,
// measure it with tests/benchmarks/device (attention_bench, shared_prefix), write a function like
// H200Profile(), and return its value from ProfileOf().
//
// Thread safety: values.

#ifndef REPRISE_ATTENTION_DEVICE_PROFILE_H_
#define REPRISE_ATTENTION_DEVICE_PROFILE_H_

#include <array>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "reprise/attention/cuda/device_limits.h"

namespace reprise {

// The plan and the builder of a work map use these costs to divide attention among the CTAs. If the name
// of a field gives no unit, the unit is an eighth of the time that a step of 64 keys takes (kStepCost in
// attention/work_map/work_map.h). The estimates are in attention/work_map/work_map_cut.h.
struct WorkMapCosts {
  // Fixed cost of a tile, apart from its keys: loading q, an unhidden first step, writing the
  // result. One value per tile size: decode tiles (16 rows), warpgroup tiles (128 rows), and the
  // others.
  int decode_tile = 0;
  int tile = 0;
  int warpgroup_tile = 0;

  // A filled column takes longer than its share of all costs, because its CTA has one more unit and waits
  // for the first keys of that unit. This time, without merges, is at least `border`. It is also at least
  // border_percent of the share, divided by the number of ranges for each column. For warpgroup tiles it
  // is `warpgroup_border`.
  int border = 0;
  int border_percent = 0;
  int warpgroup_border = 0;
  // A merge through memory.
  int merge = 0;
  int warpgroup_merge = 0;

  // Partials merged in the time of a step of 64 keys: for tiles of few rows (at most 8 live rows;
  // half as many of warpgroup tiles, and of more rows by kernels that merge jointly), and for the
  // others.
  int merges_per_step_few_rows = 0;
  int merges_per_step = 0;
  // The builder makes pieces longer if one level of merging is then enough. It adds at most this many
  // steps.
  int merge_level_steps = 0;
  // All CTAs that have pieces of a range merge it (MergesJointly()) if it has at least joint_rows rows of
  // q, or at least joint_pieces pieces of at least joint_keys keys. Otherwise one CTA merges it, because
  // it has little to read. After short pieces, a joint merge is slower: all CTAs fetch its instructions
  // at the same time.
  int joint_rows = 0;
  int joint_pieces = 0;
  int joint_keys = 0;

  // A multiprocessor with one CTA takes this much longer to read the same bytes than a full one.
  int lone_loss_percent = 0;

  // The kernel of long rows serves short ones as well where both may have at most so many steps of
  // keys for each of its CTAs; 0: never. It reads keys more slowly than the kernel of short rows,
  // but two kernels take longer to begin and to end. Set both to 0 for cards without the kernels by
  // whole warpgroups.
  int joined_steps = 0;
  // The same where the long rows may have at least a third as many query ranges as there are rows,
  // for head dims beyond 64: then reading and multiplying overlap in one kernel.
  int joined_steps_beside_prompts = 0;
  // The same kernel serves all rows of a batch if the queries of the longest row are at most this many
  // times those of a short row.
  int joined_short_rows = 0;
  // If short rows have fewer steps than this, every CTA takes its dealt units from the first to the last.
  // Such rows gain less from the other order than a CTA loses by finding its first unit later.
  int both_ways_steps = 0;

  // [n]: how many clusters of n CTAs of a decode run at the same time, two CTAs an SM, for n from 2
  // to 8; 0: clusters of n are not used. The CTAs of a cluster share a part of the card, which has
  // places for 240 of 264 CTAs in clusters of 8 on an H200. attention_bench prints those of a card.
  std::array<int, 9> clusters_of = {};
  // Pieces in a cluster of more than two CTAs have at most this many steps, because such clusters leave
  // some CTAs without work.
  int cluster_steps = 0;

  // Where there are so many SMs for each query range of a decode and KV head, CTAs are twice as wide
  // (TileMap::most_wide_rows); 0: never. Cards whose CTAs may not have 227 KB of shared memory have
  // no such kernels.
  int sms_of_wide_range = 0;
  // A range with wide CTAs has more keys than this.
  int wide_keys = 0;
};

// A field of WorkMapCosts.
struct WorkMapCostField {
  absl::string_view name;
  int WorkMapCosts::*field;
  int least;  // the smallest valid value
};

// All fields, without clusters_of.
absl::Span<const WorkMapCostField> WorkMapCostFields();

// Costs of the attention kernels over a shared prefix (attention/merge/cascade_rule.h).
struct CascadeCosts {
  double read_tb_per_s = 0;    // from memory
  double reread_tb_per_s = 0;  // of bytes that another row has just read
  // With the prefix read separately: rates for bytes that another tile has just read, and for the
  // rows' own keys; 0: the same rates as without.
  double tile_reread_tb_per_s = 0;
  double suffix_tb_per_s = 0;
  double products_tflops = 0;  // of the pass over the prefix; 0: hidden by reading
  double call_us = 0;          // per call, independent of the bytes read
  double prefix_us = 0;        // per pass over the prefix, independent of the bytes read
  double merge_us = 0;         // per merge, and per query in it
  double merge_us_per_token = 0;
  double least_gain = 0.05;  // cascade must save at least this fraction of the flat time
};

struct DeviceProfile {
  WorkMapCosts work_map;
  // With the general kernels (tier 1): the prefix, the suffixes and the merge as three launches.
  CascadeCosts cascade_launches;
  // A single launch: decodes through a work map planned for a shared prefix in small tiles
  // (SharedPrefix::kTaken, SharedTiles::kSmall of attention/work_map/work_map_plan.h).
  CascadeCosts cascade_map;
};

// One H200. docs/performance.md has the measurements.
constexpr DeviceProfile H200Profile() {
  return {
      // Small tiles share their multiprocessor with other CTAs, which make progress meanwhile.
      // Warpgroup tiles measured 17,000 cycles apart from their keys, at 2,600 per step; the cost
      // here is lower, so that columns also stay balanced in keys.
      .work_map = {.decode_tile = 4,
                   .tile = 8,
                   .warpgroup_tile = 24,
                   .border = 8,
                   .border_percent = 12,
                   .warpgroup_border = 24,
                   .merge = 12,
                   .warpgroup_merge = 56,
                   .merges_per_step_few_rows = 20,
                   .merges_per_step = 5,
                   .merge_level_steps = 2,
                   .joint_rows = 8,
                   .joint_pieces = 16,
                   .joint_keys = 384,
                   .lone_loss_percent = 12,
                   .joined_steps = 40,
                   .joined_steps_beside_prompts = 256,
                   .joined_short_rows = 4,
                   .both_ways_steps = 8,
                   // Those of 2, 4 and 8 are CUDA's answers. From them follow two ways in which the
                   // SMs may be divided into parts of 12 to 18, and from these at least so many of
                   // the others.
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
      .cascade_map = {.read_tb_per_s = 4.6,
                      .reread_tb_per_s = 8.4,
                      .tile_reread_tb_per_s = 4.4,
                      .suffix_tb_per_s = 3.8,
                      .call_us = 8,
                      .prefix_us = 7.5,
                      .merge_us_per_token = 0.145},
  };
}

// The profile for a card with these limits: that of the most similar card that was measured. So far this is
// H200Profile() for every card.
DeviceProfile ProfileOf(const DeviceLimits& limits);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_DEVICE_PROFILE_H_
