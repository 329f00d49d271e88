// Attention in two calls: Plan() once per step, Run() once per layer, over workspaces that the
// caller sets. For models with uniform layers and block tables of any form; compare FlashInfer's
// wrappers. If you build batches and tile schedules yourself, use PagedAttention()
// (attention/attention.h).
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<PlannedAttention> attention,
//                            PlannedAttention::Create({.work = ..., .device = at::kCUDA}));
//   // Once, with the sizes from schedule_bytes() and partial_bytes():
//   attention->SetScheduleWorkspace(at::empty({attention->schedule_bytes()}, bytes));
//   attention->SetPartialWorkspace(at::empty({attention->partial_bytes()}, bytes));
//   // Each step: lengths and tables, on the host or on the device
//   REPRISE_RETURN_IF_ERROR(attention->Plan({.seq_lens = seq_lens, .block_table = table}));
//   for (...) REPRISE_RETURN_IF_ERROR(attention->Run(layer, q, kv, {out, &lse}));
//
// Plan() copies its inputs into the schedule workspace and builds the tile schedule there. Host
// arrays may be overwritten after Plan() returns: they are copied through LibTorch's pinned memory,
// which is not reused before it has been read. Device arrays are read in stream order.
//
// There are two ways to capture:
//   - Capture only Run(), and call Plan() before each replay, from host or device arrays. The plan
//     stays at the same addresses.
//   - Capture Plan() too, with device arrays. Each replay plans from their current content.
// While a graph that captured a call exists, replacing a workspace is FailedPrecondition. While a
// graph that captured only Run() exists, planning for another size is FailedPrecondition too; pad
// the batch with rows of seq_len 0 instead.
//
//   state       calls allowed                    leaves by
//   bare        Set*, Reset                      all needed workspaces are set -> set
//   set         Set*, Reset, Plan                Plan -> planned
//   planned     Set*, Reset, Plan, Run           Set* or Reset -> set or bare
//
// Run() uses the preceding Plan(), which must be eager or in the same capture. Graphs of several
// sizes may share one PlannedAttention if each of them has captured its own Plan().
//
// The CPU has no tile schedule: the schedule workspace holds the inputs, and no partial workspace
// is needed. The same holds for plans without partials: partial_bytes() is 0.
//
// Errors: FailedPrecondition for a call that the state does not allow, for host arrays under
// capture, and for a call that an existing graph forbids. InvalidArgument naming the argument. The
// errors of PagedAttention(). Plan() does not check the content of device arrays: a row of a packed
// table that is invalid or has too many blocks becomes an empty row, and other lengths beyond their
// capacity are undefined behaviour.
//
// Thread safety: none; one owner. Ownership: shares ownership of the workspaces; must outlive the
// graphs that have captured a call. Several objects that never run concurrently may share one
// partial workspace. Cost: Plan() copies each input and, on a GPU, launches a few kernels, without
// synchronisation; Run() has the cost of PagedAttention().

#ifndef REPRISE_ATTENTION_PLANNED_ATTENTION_H_
#define REPRISE_ATTENTION_PLANNED_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_extras.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/plan_inputs.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build_args.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/graph_pins.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

struct PlannedAttentionOptions {
  // Heads, types, upper bounds and kernels. Calls that need general kernels (see KernelChoice) must
  // have planned for them; max_custom_mask_bytes does so automatically. On a GPU, `work.device` is
  // replaced by the limits of the device.
  TileScheduleOptions work = {};
  int block_size = 16;
  // Capacity of block_indices of packed tables, over all rows. Rows that share blocks list them
  // once per row, so the capacity may exceed the number of blocks in the cache. Absent: enough for
  // max_rows rows of max_seq_len keys.
  std::optional<int64_t> max_block_indices = {};
  // Capacity of PlanInputs::custom_mask, over all rows; 0: batches have no masks. If positive, all
  // keys in the window are read even for the queries of causal rows, because a mask may make any
  // key visible.
  int64_t max_custom_mask_bytes = 0;
  LayerWindow window = {};  // the widest window of the layers
  bool causal = true;
  at::Device device = at::kCPU;
};

class PlannedAttention {
 public:
  // Errors: InvalidArgument naming the option; the errors of PlanTileSchedule().
  static absl::StatusOr<std::unique_ptr<PlannedAttention>> Create(
      const PlannedAttentionOptions& options);

  PlannedAttention(const PlannedAttention&) = delete;
  PlannedAttention& operator=(const PlannedAttention&) = delete;
  ~PlannedAttention();

  // Minimum size of each workspace in bytes: the schedule workspace holds the schedule and the
  // plan's inputs; the partial workspace holds the partial results of split rows.
  int64_t schedule_bytes() const { return schedule_bytes_; }
  int64_t partial_bytes() const { return plan_.partial_bytes; }

  // Sets or replaces a workspace: [any size from the minimum] uint8, contiguous, on the device,
  // aligned to 256 bytes (4 on the CPU), with any content. Discards the plan.
  absl::Status SetScheduleWorkspace(at::Tensor workspace);
  absl::Status SetPartialWorkspace(at::Tensor workspace);
  // Releases both workspaces, and discards the plan.
  absl::Status Reset();

  absl::Status Plan(const PlanInputs& inputs);

  // PagedAttention() for the planned batch.
  absl::Status Run(const AttentionParams& layer, const at::Tensor& q, const KvLayer& kv,
                   const AttentionOutput& output, const AttentionExtras& extras = {});

  // Captured graphs that use this object. Calls on the CPU are not pinned: a recorder of CPU calls
  // takes its own pins from these.
  const GraphPins& pins() const { return pins_; }

 private:
  PlannedAttention(const PlannedAttentionOptions& options, const TileSchedulePlan& plan);

  absl::Status CheckReplaceable(const char* name, const at::Tensor& workspace, int64_t bytes) const;
  absl::Status CheckIsSet() const;
  absl::Status CheckLayer(const AttentionParams& layer) const;
  // Pins this object if the current stream is capturing. Returns the id of the capture, or 0.
  absl::StatusOr<uint64_t> PinIfCaptured(GraphPins& pins) const;
  void MakeMap();

  const PlannedAttentionOptions options_;
  const TileSchedulePlan plan_;  // has no bytes on the CPU
  const PlanInputSpace inputs_;
  int64_t schedule_bytes_ = 0;
  at::Tensor schedule_workspace_;  // [>= schedule_bytes] uint8: the inputs, then the schedule
  at::Tensor partial_workspace_;   // [>= partial_bytes] uint8
  TileSchedule schedule_;
  BatchSchedule work_;  // set by Plan()

  std::optional<PlanShape> planned_;
  uint64_t plan_capture_ = 0;  // the capture of Plan(); 0: Plan() ran eagerly
  GraphPins pins_;
  GraphPins lone_run_pins_;  // graphs with a Run() whose Plan() is not in the graph
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_PLANNED_ATTENTION_H_
