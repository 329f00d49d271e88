// Attention in two calls: Plan() once per step, Run() once per layer, over workspaces that the
// caller sets. For models with uniform layers and block tables of any form, like FlashInfer's
// wrappers. If you build batches and maps yourself, use PagedAttention() (attention/attention.h).
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<PlannedAttention> attention,
//                            PlannedAttention::Create({.work = ..., .device = at::kCUDA}));
//   // Once, with the sizes from map_bytes() and partial_bytes():
//   attention->SetMapWorkspace(at::empty({attention->map_bytes()}, bytes));
//   attention->SetPartialWorkspace(at::empty({attention->partial_bytes()}, bytes));
//   // Each step: lengths and tables, on the host or on the device
//   REPRISE_RETURN_IF_ERROR(attention->Plan({.seq_lens = seq_lens, .block_table = table}));
//   for (...) REPRISE_RETURN_IF_ERROR(attention->Run(layer, q, kv, {out, &lse}));
//
// Plan() copies its inputs into the map workspace and builds the work map there. Host arrays may be
// overwritten when it returns: they are copied through LibTorch's pinned memory, which is not
// reused before it has been read. Device arrays are read in stream order.
//
// There are two ways to capture. Either capture Run() alone and call Plan() before each replay,
// from host or device arrays: the plan is at unchanged addresses. Or capture Plan() too, with
// device arrays: each replay plans from their current content. While a graph that captured a call
// exists, replacing a workspace is FailedPrecondition. While a graph that captured Run() alone
// exists, so is planning for another size (rows may be padded with seq_len 0).
//
//   state       calls allowed                    leaves by
//   bare        Set*, Reset                      both workspaces are set -> set
//   set         Set*, Reset, Plan                Plan -> planned
//   planned     Set*, Reset, Plan, Run           Set* or Reset -> set or bare
//
// A Run() belongs to the Plan() before it: to one of the same capture, or to an eager one. Graphs
// of several sizes may share one PlannedAttention if each has captured its own Plan().
//
// On the CPU there is no work map: the map workspace holds the inputs, the partial one is empty.
//
// Errors: FailedPrecondition for a call that the state does not allow, host arrays under capture,
// or a call that an existing graph forbids; InvalidArgument naming the argument; those of
// PagedAttention(). The content of device arrays is not checked: lengths beyond their capacity are
// clipped when packed tables are unpacked, and are undefined behaviour otherwise.
//
// Thread safety: none; one owner. Ownership: it shares the workspaces, and must outlive the graphs
// that have captured a call. Several objects that never run at the same time may share one partial
// workspace. Cost: Plan() is a copy and two or three launches, without synchronisation; Run() costs
// as much as PagedAttention().

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
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_build_args.h"
#include "reprise/attention/work_map/work_map_plan.h"
#include "reprise/base/graph_pins.h"
#include "reprise/cache/storage/kv_layer.h"

namespace reprise {

struct PlannedAttentionOptions {
  // Heads, types, upper bounds, kernels (KernelChoice says which calls must have planned for general
  // ones; custom masks do so by themselves). The limits are taken from the device.
  WorkMapOptions work = {};
  int block_size = 16;
  // Capacity of block_indices of packed tables, over all rows. Rows that share blocks list them
  // once per row, so it may exceed the number of blocks in the cache. Absent: enough for max_rows
  // rows of max_seq_len keys.
  std::optional<int64_t> max_block_indices = {};
  // Capacity of PlanInputs::custom_mask, over all rows; 0: batches have none. Keys are then read for
  // every query of a causal row, as a mask may show any of them.
  int64_t max_custom_mask_bytes = 0;
  LayerWindow window = {};  // the widest of the layers
  bool causal = true;
  at::Device device = at::kCPU;
};

class PlannedAttention {
 public:
  // Errors: InvalidArgument naming the option; those of PlanWorkMap().
  static absl::StatusOr<std::unique_ptr<PlannedAttention>> Create(
      const PlannedAttentionOptions& options);

  PlannedAttention(const PlannedAttention&) = delete;
  PlannedAttention& operator=(const PlannedAttention&) = delete;
  ~PlannedAttention();

  // Minimum bytes of the workspaces: for the map and the plan's inputs, and for the partial results
  // of split rows.
  int64_t map_bytes() const { return map_bytes_; }
  int64_t partial_bytes() const { return plan_.partial_bytes; }

  // Sets or replaces a workspace: uint8, contiguous, on the device, aligned to 256 bytes, of any
  // content.
  absl::Status SetMapWorkspace(at::Tensor workspace);
  absl::Status SetPartialWorkspace(at::Tensor workspace);
  // Releases both workspaces.
  absl::Status Reset();

  absl::Status Plan(const PlanInputs& inputs);

  // As PagedAttention(), for the batch that was planned.
  absl::Status Run(const AttentionParams& layer, const at::Tensor& q, const KvLayer& kv,
                   const AttentionOutput& output, const AttentionExtras& extras = {});

  // Captured graphs that use this object. On the CPU each recorded call takes its own pin from
  // here.
  const GraphPins& pins() const { return pins_; }

 private:
  PlannedAttention(const PlannedAttentionOptions& options, const WorkMapPlan& plan);

  absl::Status CheckReplaceable(const char* name, const at::Tensor& workspace, int64_t bytes) const;
  absl::Status CheckIsSet() const;
  absl::Status CheckLayer(const AttentionParams& layer) const;
  // Pins this if the current stream is being captured; the id of the capture, or 0.
  absl::StatusOr<uint64_t> PinIfCaptured(GraphPins& pins) const;
  void MakeMap();

  const PlannedAttentionOptions options_;
  const WorkMapPlan plan_;  // of no bytes on the CPU
  const PlanInputSpace inputs_;
  int64_t map_bytes_ = 0;
  at::Tensor map_workspace_;      // [>= map_bytes] uint8: the inputs, then the map
  at::Tensor partial_workspace_;  // [>= partial_bytes] uint8
  WorkMap map_;
  BatchWork work_;  // set by Plan()

  std::optional<PlanShape> planned_;
  uint64_t plan_capture_ = 0;  // in which Plan() was captured; 0: it ran
  GraphPins pins_;
  GraphPins lone_run_pins_;  // of graphs with a Run() that belongs to a Plan() outside of them
};

}  // namespace reprise

#endif  // REPRISE_ATTENTION_PLANNED_ATTENTION_H_
