// The metadata that attention layers read in a step: a batch and a tile schedule per layer class.
// Computed once per step in the graph, and shared by the layers of the class.
//
//   REPRISE_ASSIGN_OR_RETURN(auto metadata, StepMetadata::Create(options, &driver));
//   // Once per captured shape:
//   StepBatches batches = metadata->BatchesAt(key, memory.arrays(), memory.slots());
//   // For each step, on the driver's stream, before the first layer:
//   REPRISE_RETURN_IF_ERROR(metadata->Build(batches, classes));
//   PagedAttention(params, batches.of_class[c], batches.work[c], ...);
//
//   class                 batch
//   rows                  the step's rows, over the class's group
//   chunks                virtual rows, cut on the device
//                         (attention/metadata/local_virtual_batch.h)
//   encoder keys          the step's rows over the cross group: encoder_lens, not causal
//   without a cache       none: such layers run in the encoder's pass (runner/parts/encoder_pass.h)
//
// Decode steps (one query per row) have their own schedules, because prompt tiles hold many queries
// of a row, and a decode would fill only one of them. So do steps with drafts
// (GraphKey::num_drafts), whose rows have up to 1 + max_drafts queries. With
// TileScheduleMode::kDeterministic, all steps use schedules with the same plan, because a row's
// result must be bitwise independent of the other rows of its step.
//
// If drafts may be trees (StepArrays::has_trees()), the batches of steps with drafts have tree mask
// regions. Layers with chunks, and attention within a step, are then not supported.
//
// With SharedPrefix::kTaken, decodes have one more kind of schedule for classes that read all keys
// of a sequence: in a cascade step (GraphKey::cascade), they read StepArrays::common_prefix_len
// keys once for all rows. Other classes are not affected.
//
// Some models attend separately to a step's own tokens and to earlier keys (ModelSpec::within). If
// rows have several tokens, their steps have two more kinds of batches: a ragged batch of the
// step's tokens, and for each class of rows a batch over the keys cached before the step.
//
// Thread safety: none; one owner. The driver must outlive this object, which must outlive graphs
// that capture Build().

#ifndef REPRISE_RUNNER_STEP_METADATA_H_
#define REPRISE_RUNNER_STEP_METADATA_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/attention/layer_classes.h"
#include "reprise/attention/layer_spec.h"
#include "reprise/attention/metadata/local_virtual_batch.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build_args.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"
#include "reprise/base/dtype.h"
#include "reprise/graphs/fingerprint.h"
#include "reprise/graphs/graph_key.h"
#include "reprise/runner/device/device_driver.h"
#include "reprise/runner/slots/slot_state.h"
#include "reprise/runner/slots/step_arrays.h"

namespace reprise {

struct StepMetadataOptions {
  std::vector<LayerSpec> layers = {};
  LayerClasses classes = {};  // of the layers
  std::vector<AttentionParams> within = {};
  // Dtype of q in `within`, and in layers without LayerSpec::q_dtype.
  DType dtype = DType::kFloat32;
  c10::Device device = c10::kCPU;
  int max_rows = 0;
  int max_tokens = 0;
  int max_seq_len = 0;
  int max_encoder_tokens = 0;                   // maximum per sequence
  int max_drafts = 0;                           // maximum per row
  std::optional<TileScheduleCosts> costs = {};  // as in TileScheduleOptions
  TileScheduleMode mode = TileScheduleMode::kBalanced;
  int decode_query_len = 1;  // as in TileScheduleOptions
  // kTaken: cascade steps are used; requires the balanced mode.
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
};

// The batches of a step with one shape: views of the runner's memory.
struct StepBatches {
  PagedBatch rows;                   // the step's rows, over the first group
  std::vector<PagedBatch> of_class;  // one per class
  std::vector<BatchSchedule> work;   // one per class, planned for the row lengths of this shape
  // For models with attention within steps, in steps whose rows may have several tokens; otherwise
  // empty.
  // One per class: keys before the step; empty batches except for kRows.
  std::vector<PagedBatch> before;
  std::vector<BatchSchedule> before_work;  // one per class
  RaggedBatch within;                      // the step's tokens
  std::vector<BatchSchedule> within_work;  // one per entry of StepMetadata::within()

  bool has_within() const { return !before.empty(); }
};

class StepMetadata {
 public:
  // Plans and allocates for the largest step. Errors: as the plans.
  static absl::StatusOr<std::unique_ptr<StepMetadata>> Create(const StepMetadataOptions& options,
                                                              DeviceDriver* driver);

  StepBatches BatchesAt(const GraphKey& key, const StepArrays& arrays,
                        const SlotState& slots) const;

  // Enqueues the computation of virtual rows and tile schedules from the step's rows, only for
  // these classes, and of the schedules of attention within steps, if `batches` have any. May be
  // captured. Steps share the memory of schedules: the schedules of one step are valid until the
  // next Build().
  absl::Status Build(const StepBatches& batches, absl::Span<const int> classes) const;

  // Returns the classes of layers [begin, end), each once.
  std::vector<int> ClassesOf(int begin, int end) const;

  absl::Span<const LayerSpec> layers() const { return options_.layers; }
  absl::Span<const AttentionParams> within() const { return options_.within; }
  const LayerClasses& classes() const { return options_.classes; }
  // Returns whether the class reads a common prefix once in cascade steps, and its schedule for
  // these steps.
  bool TakesPrefix(int index) const;
  const TileSchedule& cascade_schedule(int index) const { return cascade_schedules_[index]; }

  void AddTo(Fingerprint& fingerprint) const;

 private:
  StepMetadata(const StepMetadataOptions& options, DeviceDriver* driver);
  absl::Status Allocate(int index);
  // Returns the options of the schedule for steps with up to `max_query_len` queries per row and
  // `max_tokens` queries in total.
  TileScheduleOptions ClassMapOptions(int index, int max_tokens, int max_query_len) const;
  absl::Status AllocateWithin();
  // Allocates memory for a schedule, and returns the schedule over it.
  absl::StatusOr<TileSchedule> NewSchedule(const TileScheduleOptions& options);
  // Returns the options of the schedule for the largest step.
  TileScheduleOptions ScheduleOptionsOf(const AttentionParams& params, DType q_dtype,
                                        const KernelChoice& kernels) const;
  TileScheduleOptions ScheduleOptionsOf(const LayerSpec& layer) const {
    return ScheduleOptionsOf(layer.params, layer.q_dtype.value_or(options_.dtype), layer.kernels);
  }
  LayerWindow WindowOfClass(int index) const;
  void AllocateLocalRows(int index, int max_rows);
  absl::Status BuildClass(const StepBatches& batches, int index) const;
  void AddWithin(const StepArrays& arrays, StepBatches& batches) const;

  StepMetadataOptions options_;
  DeviceDriver* driver_;
  std::vector<TileSchedule> before_schedules_;  // one per class; empty without `within`
  std::vector<TileSchedule> within_schedules_;  // one per entry of `within`
  std::vector<TileSchedule> tile_schedules_;    // one per class
  std::vector<TileSchedule>
      decode_schedules_;                       // one per class; share the memory of tile_schedules_
  std::vector<TileSchedule> draft_schedules_;  // one per class; share the same memory
  std::vector<TileSchedule> cascade_schedules_;  // one per class; share the same memory
  std::vector<LocalBatchBuffers> local_rows_;    // one per class; empty except for chunks
  std::vector<at::Tensor> memory_;               // owns the memory of the members above
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_METADATA_H_
