// One point of the attention benchmark: a layer, a batch of lengths, a cache; timed.
//
// A call is timed as in a step: as one of many layers that share a tile schedule, in a replayed
// graph. Each layer has its own cache, queries and outputs, together larger than the L2, so every
// call finds cold memory. Block tables are shuffled. The schedule is timed separately.

#ifndef TESTS_BENCHMARKS_DEVICE_ATTENTION_CASE_H_
#define TESTS_BENCHMARKS_DEVICE_ATTENTION_CASE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"
#include "reprise/cache/storage/kv_layout.h"
#include "tests/benchmarks/device/replay_timer.h"

namespace reprise {

struct AttentionCase {
  std::string name;
  int num_q_heads = 32;
  int num_kv_heads = 8;
  int head_dim_qk = 128;
  int head_dim_v = 128;
  int block_size = 16;
  // One per row: the number of keys, and the number of queries, which are the last keys.
  std::vector<int> lens = {};
  std::vector<int> query_lens = {};
  // Number of first keys in blocks that all rows share; a multiple of block_size, at most the
  // smallest of lens.
  int shared_len = 0;
  // kTaken: those keys are read once for all rows if the schedule shares them.
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
  SharedTiles shared_tiles = SharedTiles::kSmall;
  TileScheduleCosts costs = H200Profile().tile_schedule;
  bool causal = true;
  std::optional<int> window_left = {};
  std::optional<float> softcap = {};
  std::optional<RotaryParams> rotary = {};  // in the kernel
  DType dtype = DType::kBFloat16;
  std::optional<DType> kv_dtype = {};  // dtype
  KvOrder order = KvOrder::kNHD;
  KvForm form = KvForm::kPair;
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  // As AttentionExtras has them.
  std::optional<DType> products = {};
  int max_tier = 2;
  int num_sms = 0;  // SMs to plan for; 0: those of the card
  // Time of the best known peer for this shape, and our target, if known.
  std::optional<double> peer_us = {};
  std::optional<double> target_us = {};
};

struct AttentionResult {
  Timing call;
  Timing tile_schedule;
  std::string kernel;    // its name
  int num_layers = 0;    // that were called in turn
  double kv_bytes = 0;   // of a call: visible keys and values, once
  double all_bytes = 0;  // and q and out
  double flops = 0;      // of the visible (query, key) pairs

  // Whether the products bound the call rather than the bytes.
  bool is_compute_bound() const { return flops > 100 * all_bytes; }
  double tb_per_s() const { return kv_bytes / call.median_us / 1e6; }
  double tflop_per_s() const { return flops / call.median_us / 1e6; }
};

// Errors: InvalidArgument for a case that is not a valid batch; ResourceExhausted if it does not
// fit into the device's memory; Unimplemented if no kernel serves it.
absl::StatusOr<AttentionResult> MeasureAttention(const AttentionCase& attention_case);

}  // namespace reprise

#endif  // TESTS_BENCHMARKS_DEVICE_ATTENTION_CASE_H_
