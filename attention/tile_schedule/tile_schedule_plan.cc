#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "reprise/attention/cuda/attention_dispatch.h"
#include "reprise/attention/cuda/tiles.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/head_dims.h"
#include "reprise/attention/tile_schedule/tile_schedule_cut.h"
#include "reprise/base/divisor.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

// The builder packs the three counts into at most 64 bits.
constexpr int64_t kMaxItems = int64_t{1} << 21;
constexpr int64_t kMaxPartials = int64_t{1} << 23;
constexpr int64_t kMaxMerges = int64_t{1} << 19;
// The queues are a dimension of the grid.
constexpr int kMaxQueues = 65535;

// Clusters and warpgroup kernels are used only on cards with this much shared memory per CTA.
constexpr int kSharedBytesOfWarpgroups = 227 * 1024;

absl::Status CheckAtLeast(absl::string_view name, int least, int got) {
  if (got >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " of TileScheduleOptions: expected >= ", least, ", got ", got));
}

// Products of a cost and a constant, or a number of splits, stay within int32.
constexpr int kMaxCost = 1 << 16;

absl::Status CheckCost(absl::string_view name, int least, int got) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast(name, least, got));
  if (got <= kMaxCost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " of TileScheduleOptions: expected <= ", kMaxCost, ", got ", got));
}

absl::Status CheckCosts(const TileScheduleCosts& costs) {
  for (const TileScheduleCostField& cost : TileScheduleCostFields()) {
    REPRISE_RETURN_IF_ERROR(
        CheckCost(absl::StrCat("costs.", cost.name), cost.least, costs.*cost.field));
  }
  for (const int clusters : costs.clusters_of) {
    REPRISE_RETURN_IF_ERROR(CheckCost("costs.clusters_of", 0, clusters));
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const TileScheduleOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_q_heads", 1, options.num_q_heads));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_kv_heads", 1, options.num_kv_heads));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim_qk", 1, options.head_dim_qk));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("head_dim_v", 1, options.head_dim_v));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_rows", 0, options.max_rows));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_tokens", 0, options.max_tokens));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_query_len", 1, options.max_query_len));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_seq_len", 0, options.max_seq_len));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("device.num_sms", 1, options.device.num_sms));
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("device.max_shared_bytes", 0, options.device.max_shared_bytes));
  REPRISE_RETURN_IF_ERROR(
      CheckAtLeast("device.compute_capability", 0, options.device.compute_capability));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("kernels.max_tier", 1, options.kernels.max_tier));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("max_splits", 1, options.max_splits));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("decode_query_len", 1, options.decode_query_len));
  if (options.max_splits > kMaxDeterministicSplits) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_splits of TileScheduleOptions: expected <= ", kMaxDeterministicSplits,
                     ", got ", options.max_splits));
  }
  REPRISE_RETURN_IF_ERROR(CheckCosts(*options.costs));
  if (options.shared_prefix == SharedPrefix::kTaken &&
      options.mode != TileScheduleMode::kBalanced) {
    return absl::InvalidArgumentError(
        "shared_prefix of TileScheduleOptions must be kIgnored in deterministic mode, where "
        "results do not depend on the other rows: got kTaken");
  }
  if (options.num_q_heads % options.num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_q_heads of TileScheduleOptions: expected a multiple of num_kv_heads ",
                     options.num_kv_heads, ", got ", options.num_q_heads));
  }
  return absl::OkStatus();
}

struct Bounds {
  int64_t items = 0;
  int64_t merges = 0;
  int64_t partials = 0;
};

// Here, `partials` counts splits that write partials.
Bounds BalancedBounds(int64_t tiles, int64_t queues, int64_t steps) {
  // A Q tile is split at the queue borders inside it; with n KV tiles, at most n - 1 times.
  const int64_t cuts = std::min(queues - 1, tiles * std::max<int64_t>(0, steps - 1));
  const int64_t merges = std::min(cuts, tiles);
  return {tiles + cuts, merges, cuts + merges};
}

Bounds DeterministicBounds(int64_t tiles, int64_t rows, int64_t max_row_tiles, int64_t steps,
                           int64_t max_splits) {
  const int64_t longest = CeilDiv(steps, kMinDeterministicSteps);
  Bounds a_row;  // per row; items beyond one per Q tile
  max_row_tiles = std::min<int64_t>(max_row_tiles, max_splits / 2);
  for (int64_t row_tiles = 1; row_tiles <= max_row_tiles; ++row_tiles) {
    const int64_t splits = std::min(max_splits / row_tiles, longest);
    if (splits < 2) continue;
    a_row.items = std::max(a_row.items, row_tiles * (splits - 1));
    a_row.partials = std::max(a_row.partials, row_tiles * splits);
    a_row.merges = row_tiles;
  }
  return {tiles + rows * a_row.items, std::min(tiles, rows * a_row.merges), rows * a_row.partials};
}

// Adds `decodes` Q tiles of one query each, which are split like rows of one query.
Bounds WithDecodes(const Bounds& bounds, int64_t decodes, int64_t steps, int64_t max_splits) {
  const Bounds added =
      DeterministicBounds(decodes, decodes, /*max_row_tiles=*/1, steps, max_splits);
  return {bounds.items + added.items, bounds.merges + added.merges,
          bounds.partials + added.partials};
}

// Maximum number of partials per Q tile, if they may be by queue; otherwise 0. The Q tiles of a
// queue can share partial slots, because a Q tile of several queries needs only one kernel tile per
// KV head: the slots of a CTA's heads do not depend on the number of queries.
int64_t QueuePartials(const TileScheduleOptions& options, const KernelSchedule& schedule,
                      int64_t steps) {
  const int64_t queries =
      options.max_query_len <= schedule.decode_query_len ? 1 : schedule.tile_queries;
  if (options.mode != TileScheduleMode::kDeterministic) return 0;
  return std::min<int64_t>(options.max_splits, CeilDiv(steps, kMinDeterministicSteps)) * queries;
}

// Every Q tile of a row is combined. Partials are counted per query: one for each token, and at
// most tile_queries for each split beyond the first and for each shared Q tile.
Bounds SharedBounds(int64_t tiles, int64_t shared_tiles, const KernelSchedule& schedule,
                    int64_t steps) {
  const Bounds bounds = BalancedBounds(tiles + shared_tiles, schedule.num_queues, steps);
  const int64_t cuts = bounds.items - tiles - shared_tiles;
  return {bounds.items, tiles, schedule.max_tokens + (cuts + shared_tiles) * schedule.tile_queries};
}

// Allocates parts of a workspace. If the workspace is null, only counts the bytes.
class Allotter {
 public:
  explicit Allotter(void* base) : base_(static_cast<char*>(base)) {}

  template <typename T>
  void Give(T*& array, int64_t count) {
    if (base_) array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ = CeilDiv(bytes_ + count * static_cast<int64_t>(sizeof(T)), 256) * 256;
  }

  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

void LayOutItems(KernelSchedule& schedule, Allotter& allotter) {
  allotter.Give(schedule.counts, kNumMapCounts);
  allotter.Give(schedule.queue_items, schedule.num_queues + 1);
  allotter.Give(schedule.queue_first, schedule.num_queues + 1);
  if (schedule.may_be_dealt) allotter.Give(schedule.deal_order, schedule.max_tiles);
  allotter.Give(schedule.items, schedule.max_items);
  allotter.Give(schedule.merges, schedule.max_merges);
  allotter.Give(schedule.arrivals, int64_t{schedule.max_merges} * schedule.num_head_tiles);
  allotter.Give(schedule.group_arrivals, int64_t{schedule.max_partials} * schedule.num_head_tiles);
  std::byte* scratch = nullptr;
  allotter.Give(scratch, TileScheduleScratch::Bytes(schedule));
  schedule.scratch = scratch;
}

void LayOutPartials(KernelSchedule& schedule, Allotter& allotter) {
  const int64_t partials = int64_t{schedule.max_partials} * schedule.num_q_heads;
  allotter.Give(schedule.partial_lse, partials);
  allotter.Give(schedule.partial_out, partials * PartialPitch(schedule.head_dim_v));
}

int64_t LayOutMap(void* memory, TileSchedule& schedule) {
  Allotter allotter(memory);
  LayOutItems(schedule.main, allotter);
  if (schedule.has_short_rows()) LayOutItems(schedule.short_rows, allotter);
  return allotter.bytes();
}

int64_t LayOutPartials(void* memory, TileSchedule& schedule) {
  Allotter allotter(memory);
  LayOutPartials(schedule.main, allotter);
  if (schedule.has_short_rows()) LayOutPartials(schedule.short_rows, allotter);
  return allotter.bytes();
}

constexpr int kFewRows = 8;

// Kernel tiles of at most this many rows are memory bound, unless their MMA type is float32.
constexpr int kMaxRowsOfReading = 32;

// The value of CutCosts::combines_per_step. `rows`: live rows of the kernel tile. Tiles of up to
// kFewRows rows have small partials. Decode kernels may combine larger partials in several CTAs,
// and tiles of kWarpgroupRows rows have more warps for them.
int CombinesPerStep(const AttentionKernelEntry& kernel, int rows, const TileScheduleCosts& costs) {
  const int of_few = costs.combines_per_step_few_rows * kStepCost;
  if (rows <= kFewRows) return of_few;
  return kernel.prefetches_in_prologue() || kernel.tile.rows() >= kWarpgroupRows
             ? std::max(of_few / 2, 1)
             : costs.combines_per_step * kStepCost;
}

// The costs for schedules whose kernel tiles have up to `rows` live rows.
CutCosts CutCostsOf(const AttentionKernelEntry& kernel, int rows, const TileScheduleCosts& costs) {
  CutCosts of_tile = {.tile = costs.tile,
                      .combines_per_step = CombinesPerStep(kernel, rows, costs),
                      .merge = costs.merge,
                      .combine_level_steps = costs.combine_level_steps,
                      .border = costs.border,
                      .border_percent = costs.border_percent,
                      .cluster_steps = costs.cluster_steps,
                      .joint_splits = costs.joint_splits,
                      .joint_keys = costs.joint_keys,
                      .both_ways_steps = costs.both_ways_steps,
                      .wide_keys = costs.wide_keys};
  of_tile.is_bound_by_reading =
      kernel.tile.rows() <= kMaxRowsOfReading && kernel.tile.dtype != DType::kFloat32;
  of_tile.ctas_per_sm = kernel.tile.ctas_per_sm;
  if (of_tile.ctas_per_sm > 1) {
    of_tile.lone_percent = (100 + costs.lone_loss_percent) / of_tile.ctas_per_sm;
  }
  if (kernel.tile.rows() == kDecodeRows) of_tile.tile = costs.decode_tile;
  if (kernel.tile.rows() == kWarpgroupRows) {
    of_tile.tile = costs.warpgroup_tile;
    of_tile.merge = costs.warpgroup_combine;
    of_tile.border = costs.warpgroup_border;
    of_tile.border_percent = 0;
  }
  return of_tile;
}

// Upper bound of the number of queries in a Q tile, of one row or of several rows.
int MaxQueries(const TileScheduleOptions& options) {
  return options.shared_prefix == SharedPrefix::kTaken
             ? std::max(options.max_tokens, options.max_query_len)
             : options.max_query_len;
}

// The kernel for Q tiles of up to `num_queries` queries, with keys that need no conversion.
absl::StatusOr<const AttentionKernelEntry*> KernelFor(const TileScheduleOptions& options,
                                                      int num_queries) {
  const int64_t rows = int64_t{num_queries} * (options.num_q_heads / options.num_kv_heads);
  const bool is_latent = options.head_dim_qk > kMaxAttentionHeadDim;
  const DType dtype = options.kernels.products.value_or(options.dtype);
  return FindAttentionKernel({.q_dtype = dtype,
                              .kv_dtype = dtype,
                              .head_dim_qk = options.head_dim_qk,
                              .head_dim_v = options.head_dim_v,
                              .rows = static_cast<int>(std::min<int64_t>(rows, 1 << 20)),
                              .values = is_latent ? ValueSource::kKeyTile : ValueSource::kOwn,
                              .max_shared_bytes = options.device.max_shared_bytes,
                              .compute_capability = options.device.compute_capability,
                              .max_tier = options.kernels.max_tier});
}

// The number of queries that the plan's largest kernel tile should hold.
int QueriesToHold(const TileScheduleOptions& options) {
  return options.shared_tiles == SharedTiles::kSmall ? options.max_query_len : MaxQueries(options);
}

// Whether the card's shared memory allows clusters and warpgroup kernels.
bool MayHaveWarpgroups(const TileScheduleOptions& options) {
  return options.device.max_shared_bytes == 0 ||
         options.device.max_shared_bytes >= kSharedBytesOfWarpgroups;
}

// Adds clusters and wide CTAs if the kernel, the card and the options allow them. Deterministic
// mode has none, because its results must not depend on the number of rows.
void PlanFewRows(const TileScheduleOptions& options, const AttentionKernelEntry& kernel,
                 KernelSchedule& schedule) {
  const bool may_merge = options.mode == TileScheduleMode::kBalanced &&
                         options.row_assignment == RowAssignment::kByBatch &&
                         options.shared_prefix != SharedPrefix::kTaken;
  if (!kernel.prefetches_in_prologue() || kernel.tile.rows() != kDecodeRows || !may_merge ||
      !MayHaveWarpgroups(options) || schedule.heads_per_queue < schedule.num_head_tiles) {
    return;
  }
  static_assert(std::tuple_size_v<decltype(TileScheduleCosts::clusters_of)> ==
                kMaxClusterQueues + 1);
  for (int n = 2; n <= kMaxClusterQueues; ++n) {
    schedule.clusters_of[n] =
        std::min({options.costs->clusters_of[n] / schedule.heads_per_queue, schedule.num_queues / n,
                  n > 2 ? schedule.clusters_of[2] : schedule.num_queues});
  }
  if (kernel.tile.head_dim_qk == kHeadDimOfWideTiles && options.costs->sms_of_wide_range > 0) {
    const int ranges = options.device.num_sms / options.costs->sms_of_wide_range;
    schedule.max_wide_rows = ranges / schedule.heads_per_queue;
    schedule.wide_queues =
        std::min(options.device.num_sms / schedule.heads_per_queue, schedule.num_queues);
  }
}

// The schedule for the rows of `kernel`, with null pointers.
absl::StatusOr<KernelSchedule> PlanTiles(const TileScheduleOptions& options,
                                         const AttentionKernelEntry& kernel) {
  const AttentionTile& tile = kernel.tile;
  const int group_size = options.num_q_heads / options.num_kv_heads;
  KernelSchedule schedule;
  schedule.max_rows = options.max_rows;
  schedule.max_tokens = options.max_tokens;
  schedule.max_query_len = options.max_query_len;
  schedule.max_seq_len = options.max_seq_len;
  schedule.dtype = options.dtype;
  schedule.num_q_heads = options.num_q_heads;
  schedule.num_kv_heads = options.num_kv_heads;
  schedule.head_dim_qk = options.head_dim_qk;
  schedule.head_dim_v = options.head_dim_v;
  schedule.mode = options.mode;
  schedule.max_splits = options.max_splits;
  if (options.mode == TileScheduleMode::kDeterministic) {
    schedule.decode_query_len = std::min(options.decode_query_len, options.max_query_len);
  }

  schedule.tile_rows = tile.rows();
  schedule.tile_queries = std::clamp(tile.rows() / group_size, 1, MaxQueries(options));
  const int64_t head_tiles = CeilDiv(int64_t{schedule.tile_queries} * group_size, tile.rows());
  schedule.num_head_tiles = static_cast<int>(options.num_kv_heads * head_tiles);
  schedule.costs =
      CutCostsOf(kernel, std::min(tile.rows(), schedule.tile_queries * group_size), *options.costs);
  const int ctas = options.device.num_sms * tile.ctas_per_sm;
  schedule.heads_per_queue = std::min(schedule.num_head_tiles, ctas);
  schedule.num_queues = std::min(ctas / schedule.heads_per_queue, kMaxQueues);
  PlanFewRows(options, kernel, schedule);
  schedule.may_be_dealt = kernel.may_be_dealt() && options.mode == TileScheduleMode::kBalanced &&
                          options.shared_prefix != SharedPrefix::kTaken;
  schedule.num_ctas = schedule.may_be_dealt ? ctas : schedule.heads_per_queue * schedule.num_queues;
  if (kernel.prefetches_in_prologue()) {
    schedule.min_joint_queries = static_cast<int>(CeilDiv(options.costs->joint_rows, group_size));
  }

  const bool shares = options.shared_prefix == SharedPrefix::kTaken;
  const int64_t rows = std::min(options.max_rows, options.max_tokens);
  const int64_t max_row_tiles = CeilDiv(options.max_query_len, schedule.tile_queries);
  const int64_t shared_tiles = shares ? CeilDiv(options.max_tokens, schedule.tile_queries) : 0;
  int64_t tiles = shares && options.max_query_len > 1
                      ? rows + shared_tiles
                      : rows + std::min((options.max_tokens - rows) / schedule.tile_queries,
                                        rows * (max_row_tiles - 1));
  const int64_t steps = CeilDiv(options.max_seq_len, kWorkStepKeys);
  Bounds bounds = options.mode == TileScheduleMode::kBalanced
                      ? BalancedBounds(tiles, schedule.num_queues, steps)
                      : DeterministicBounds(tiles, rows, max_row_tiles, steps, options.max_splits);
  bounds.partials *= std::min(schedule.tile_queries, options.max_query_len);
  if (schedule.decode_query_len > 1) {
    const int64_t decodes = std::min<int64_t>(options.max_tokens, rows * schedule.decode_query_len);
    // If no row may be longer, all rows are split by query.
    if (options.max_query_len <= schedule.decode_query_len) {
      tiles = 0;
      bounds = {};
    }
    tiles += decodes;
    bounds = WithDecodes(bounds, decodes, steps, options.max_splits);
  }
  const int64_t queue_partials = QueuePartials(options, schedule, steps);
  const int64_t of_queues = 2 * int64_t{schedule.num_queues} * queue_partials;
  if (queue_partials > 0 && of_queues < bounds.partials) {
    schedule.queue_partials = static_cast<int>(queue_partials);
    bounds.partials = of_queues;
  }
  if (shares) {
    const Bounds shared = SharedBounds(tiles, shared_tiles, schedule, steps);
    bounds = {std::max(bounds.items, shared.items), std::max(bounds.merges, shared.merges),
              std::max(bounds.partials, shared.partials)};
  }
  if (bounds.items >= kMaxItems || bounds.partials >= kMaxPartials || bounds.merges >= kMaxMerges) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens of TileScheduleOptions: expected fewer than ", kMaxItems,
                     " items, ", kMaxPartials, " partials and ", kMaxMerges, " merges, got ",
                     bounds.items, ", ", bounds.partials, " and ", bounds.merges));
  }
  // If rows have at most one Q tile, the builder also keeps a Q tile for each row without queries.
  schedule.max_shared_tiles = static_cast<int>(shared_tiles);
  schedule.max_tiles = static_cast<int>(shared_tiles + std::max(tiles, int64_t{options.max_rows}));
  schedule.max_items = static_cast<int>(bounds.items);
  schedule.max_merges = static_cast<int>(bounds.merges);
  schedule.max_partials = static_cast<int>(bounds.partials);
  return schedule;
}

// Maximum number of queries per row of the second schedule, which has the tile `least` (the tile
// for a row of one query). 0: the plan has one schedule.
int ShortRowsOf(const TileScheduleOptions& options, const AttentionTile& tile,
                const AttentionTile& least) {
  if (least.rows() >= tile.rows() || options.shared_prefix == SharedPrefix::kTaken) return 0;
  const int held = least.rows() / (options.num_q_heads / options.num_kv_heads);
  if (options.mode != TileScheduleMode::kDeterministic) return held;
  return std::max(held, std::min(options.decode_query_len, options.max_query_len));
}

// Sets the limits up to which all rows join the schedule of long rows.
void PlanJoins(const TileScheduleOptions& options, TileSchedule& schedule) {
  schedule.joined_short_rows = options.costs->joined_short_rows;
  if (!schedule.main.may_be_dealt || !MayHaveWarpgroups(options)) return;
  const auto of_all_ctas = [&](int64_t steps) {
    return steps * schedule.main.num_ctas / schedule.main.num_head_tiles;
  };
  schedule.max_joined_steps = of_all_ctas(options.costs->joined_steps);
  // A KV tile of smaller heads has the same softmax time, but at most half the read time.
  if (std::min(options.head_dim_qk, options.head_dim_v) > 64) {
    schedule.max_joined_steps_beside_prompts =
        of_all_ctas(options.costs->joined_steps_beside_prompts);
  }
}

}  // namespace

absl::StatusOr<TileSchedulePlan> PlanTileSchedule(const TileScheduleOptions& given) {
  TileScheduleOptions options = given;
  if (!options.costs) options.costs = ProfileOf(options.device).tile_schedule;
  REPRISE_RETURN_IF_ERROR(CheckOptions(options));
  const auto is_served = [&](bool v_in_k) {
    return SupportsHeadDims(AttentionDevice::kCuda, options.dtype,
                            {options.head_dim_qk, options.head_dim_v, v_in_k});
  };
  if (!is_served(/*v_in_k=*/false) && !is_served(/*v_in_k=*/true)) {
    return absl::UnimplementedError(
        absl::StrCat("attention on CUDA supports float32, float16, bfloat16 and fp8 with ",
                     SupportedHeadDims(AttentionDevice::kCuda,
                                       SizeOf(options.dtype) > 4 ? DType::kFloat32 : options.dtype),
                     ": got ", std::string(DTypeName(options.dtype)), " with ", options.head_dim_qk,
                     " and ", options.head_dim_v));
  }
  REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* const kernel,
                           KernelFor(options, std::max(1, QueriesToHold(options))));
  REPRISE_ASSIGN_OR_RETURN(const AttentionKernelEntry* const least, KernelFor(options, 1));
  TileSchedulePlan plan;
  TileSchedule& schedule = plan.shape;
  schedule.row_assignment = options.mode == TileScheduleMode::kDeterministic
                                ? RowAssignment::kByRow
                                : options.row_assignment;
  schedule.kernels = options.kernels;
  const int longest = ShortRowsOf(options, kernel->tile, least->tile);
  TileScheduleOptions main = options;
  if (longest > 0) main.decode_query_len = 1;  // the decode rows are in short_rows
  REPRISE_ASSIGN_OR_RETURN(schedule.main, PlanTiles(main, *kernel));
  if (longest > 0) {
    TileScheduleOptions short_rows = options;
    short_rows.max_query_len = longest;
    short_rows.max_tokens = static_cast<int>(
        std::min<int64_t>(options.max_tokens, int64_t{options.max_rows} * longest));
    REPRISE_ASSIGN_OR_RETURN(schedule.short_rows, PlanTiles(short_rows, *least));
    PlanJoins(options, schedule);
  }
  plan.schedule_bytes = LayOutMap(nullptr, schedule);
  plan.partial_bytes = LayOutPartials(nullptr, schedule);
  plan.workspace_bytes = plan.schedule_bytes + plan.partial_bytes;
  return plan;
}

TileSchedule MakeTileSchedule(const TileSchedulePlan& plan, void* workspace) {
  return MakeTileSchedule(plan, workspace,
                          static_cast<std::byte*>(workspace) + plan.schedule_bytes);
}

TileSchedule MakeTileSchedule(const TileSchedulePlan& plan, void* schedule_memory,
                              void* partial_memory) {
  TileSchedule schedule = plan.shape;
  LayOutMap(schedule_memory, schedule);
  LayOutPartials(partial_memory, schedule);
  return schedule;
}

}  // namespace reprise
