// Attention in two calls: Plan() once a step, Run() once a layer, over workspaces that the caller
// sets. For models whose layers are alike, with block tables of any form, as FlashInfer's wrappers
// serve them; who builds batches and maps himself uses PagedAttention() (attention/attention.h).
//
//   REPRISE_ASSIGN_OR_RETURN(std::unique_ptr<PlannedAttention> attention,
//                            PlannedAttention::Create({.work = ..., .device = at::kCUDA}));
//   // Once; the sizes are asked for beforehand:
//   attention->SetMapWorkspace(at::empty({attention->map_bytes()}, bytes));
//   attention->SetPartialWorkspace(at::empty({attention->partial_bytes()}, bytes));
//   // Each step: lengths and tables, on the host or on the device
//   REPRISE_RETURN_IF_ERROR(attention->Plan({.seq_lens = seq_lens, .block_table = table}));
//   for (...) REPRISE_RETURN_IF_ERROR(attention->Run(layer, q, kv, out, &lse));
//
// Plan() copies what it is given into the map workspace, and makes the work map there. Arrays on
// the host may be overwritten when it returns: they travel through pinned memory of LibTorch's,
// which is not reused before it was read. Arrays on the device are read in stream order.
//
// Two ways into a graph. Run() alone is captured, and Plan() is called before each replay, from
// host or device: what it plans stands at unchanged addresses. Or Plan(), with arrays on the
// device, is captured too, and each replay plans anew from what they hold then. While a graph lives
// that captured a call, the workspaces stay: replacing one is FailedPrecondition. While one lives
// that captured Run() alone, so does planning for another size (rows may be padded with seq_len 0).
//
//   state       calls allowed                    leaves by
//   bare        Set*, Reset                      both workspaces are set -> set
//   set         Set*, Reset, Plan                Plan -> planned
//   planned     Set*, Reset, Plan, Run           Set* or Reset -> set or bare
//
// A Run() belongs to the Plan() before it: to one of the same capture, or to an eager one. Graphs
// of several sizes may share all this if each has captured its own Plan().
//
// On the CPU there is no work map: the map workspace holds the inputs, the partial one is empty.
//
// Errors: FailedPrecondition for a call that the state does not allow, host arrays under capture,
// or what a living graph forbids; InvalidArgument naming the argument; those of PagedAttention().
// Arrays on a device are not looked into: lengths beyond their capacity are clipped when packed
// tables are unpacked, and undefined behaviour otherwise.
//
// Thread safety: none; one owner. Ownership: it shares the workspaces, and must outlive the graphs
// that have captured a call. Several that never run at the same time may be given one partial
// workspace. Cost: Plan() a copy, two or three launches and no synchronisation; Run() that of
// PagedAttention().

#ifndef ATTENTION_PLANNED_ATTENTION_H_
#define ATTENTION_PLANNED_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/attention_extras.h"
#include "attention/attention_params.h"
#include "attention/plan_inputs.h"
#include "attention/work_map.h"
#include "attention/work_map_plan.h"
#include "attention/work_map_rows.h"
#include "base/graph_pins.h"
#include "cache/kv_layer.h"

namespace reprise {

struct PlannedAttentionOptions {
  WorkMapOptions work = {};  // heads, types, upper bounds; num_sms is taken from the device
  int block_size = 16;
  // Of packed tables, over all rows: rows that share blocks list them once a row, so there may be
  // more than the cache has blocks. Absent: as many as max_rows rows of max_seq_len keys have.
  std::optional<int64_t> max_block_indices = {};
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

  // Bytes that the workspaces must have at least: for the map and the plan's inputs, and for the
  // partial results of rows that are cut.
  int64_t map_bytes() const { return map_bytes_; }
  int64_t partial_bytes() const { return plan_.partial_bytes; }

  // Sets or replaces a workspace: uint8, contiguous, on the device, aligned to 256 bytes, of any
  // content.
  absl::Status SetMapWorkspace(at::Tensor workspace);
  absl::Status SetPartialWorkspace(at::Tensor workspace);
  // Lets go of both.
  absl::Status Reset();

  absl::Status Plan(const PlanInputs& inputs);

  // As PagedAttention(), for the batch that was planned. `lse` may be null.
  absl::Status Run(const AttentionParams& layer, const at::Tensor& q, const KvLayer& kv,
                   at::Tensor& out, at::Tensor* lse, const AttentionExtras& extras = {});

  // Captured graphs that use this. On the CPU a recorded call takes a pin of its own from here.
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

  std::optional<PlanShape> planned_;
  uint64_t plan_capture_ = 0;  // in which Plan() was captured; 0: it ran
  GraphPins pins_;
  GraphPins lone_run_pins_;  // of graphs with a Run() that belongs to a Plan() outside of them
};

}  // namespace reprise

#endif  // ATTENTION_PLANNED_ATTENTION_H_
