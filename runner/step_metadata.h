// The metadata that attention layers read in a step: a batch and a work map for each layer class,
// made once per step inside the graph and shared by the layers of the class.
//
//   REPRISE_ASSIGN_OR_RETURN(auto metadata, StepMetadata::Create(options, &driver));
//   // Once per captured shape:
//   StepBatches batches = metadata->BatchesAt(key, memory.arrays(), memory.slots());
//   // Each step, on the driver's stream, before the first layer:
//   REPRISE_RETURN_IF_ERROR(metadata->Build(batches));
//   PagedAttention(params, batches.of_class[c], batches.work[c], ...);
//
//   class                 batch
//   rows                  the step's rows, over the class's group
//   chunks                virtual rows, cut on the device (attention/metadata/local_virtual_batch.h)
//   the encoder's keys    the step's rows over the cross group: encoder_lens, not causal
//   without a cache       none: such layers run in the encoder's pass (runner/parts/encoder_pass.h)
//
// Decode steps (one query per row) have their own maps: prompt tiles hold many queries of a row, of
// which a decode fills only one. With WorkMapMode::kDeterministic all steps have the same maps,
// since a row's bits must not depend on the other rows of its step. Likewise steps with drafts
// (GraphKey::num_drafts), whose rows have up to 1 + max_drafts queries.
//
// Where drafts may be trees (StepArrays::has_trees()), the batches of steps with drafts have their
// tails: layers of chunks and attention within a step cannot be served there.
//
// With SharedPrefix::kTaken decodes have a third kind of map for classes that read all keys of a
// sequence: in a cascade step (GraphKey::cascade) they read StepArrays::common_prefix_len keys once
// for all rows. Other classes are not affected.
//
// Models that attend separately to a step's own tokens and to the keys before it
// (ModelSpec::within) get two more kinds in steps of rows with several tokens: a ragged batch of
// the step's tokens, and for each class of rows a batch over the keys that were cached before.
//
// Thread safety: none; one owner. The driver must outlive it; it must outlive graphs that call
// Build() in their capture.

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
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_build_args.h"
#include "reprise/attention/work_map/work_map_plan.h"
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
  DType dtype = DType::kFloat32;  // of q in layers whose spec says nothing else, and in `within`
  c10::Device device = c10::kCPU;
  int max_rows = 0;
  int max_tokens = 0;
  int max_seq_len = 0;
  int max_encoder_tokens = 0;              // of a sequence
  int max_drafts = 0;                      // of a row
  std::optional<WorkMapCosts> costs = {};  // as in WorkMapOptions
  WorkMapMode mode = WorkMapMode::kBalanced;
  int decode_query_len = 1;  // as WorkMapOptions has it
  // kTaken: there are cascade steps; balanced mode only.
  SharedPrefix shared_prefix = SharedPrefix::kIgnored;
};

// The batches of a step at one shape: views of the runner's memory.
struct StepBatches {
  PagedBatch rows;                   // the step's rows, over the first group
  std::vector<PagedBatch> of_class;  // one per class
  std::vector<BatchWork> work;       // one per class, planned for the row lengths of this shape
  // For models with attention within steps, in steps whose rows may have several tokens; else
  // empty.
  std::vector<PagedBatch> before;      // one per class: keys before the step; none but for kRows
  std::vector<BatchWork> before_work;  // one per class
  RaggedBatch within;                  // the step's tokens
  std::vector<BatchWork> within_work;  // one of StepMetadata::within()

  bool has_within() const { return !before.empty(); }
};

class StepMetadata {
 public:
  // Plans and allocates at the largest step. Errors: those of the plans.
  static absl::StatusOr<std::unique_ptr<StepMetadata>> Create(const StepMetadataOptions& options,
                                                              DeviceDriver* driver);

  StepBatches BatchesAt(const GraphKey& key, const StepArrays& arrays,
                        const SlotState& slots) const;

  // Enqueues the computation of virtual rows and work maps from the step's rows, for these classes
  // alone; the maps of attention within steps are always among them. May be captured. Steps share
  // the memory of the maps: what one builds is there until the next is built.
  absl::Status Build(const StepBatches& batches, absl::Span<const int> classes) const;

  // The classes of layers [begin, end), each once.
  std::vector<int> ClassesOf(int begin, int end) const;

  absl::Span<const LayerSpec> layers() const { return options_.layers; }
  absl::Span<const AttentionParams> within() const { return options_.within; }
  const LayerClasses& classes() const { return options_.classes; }
  // Whether the class reads a common prefix once in cascade steps, and how it is cut there.
  bool TakesPrefix(int index) const;
  const WorkMap& cascade_map(int index) const { return cascade_maps_[index]; }

  void AddTo(Fingerprint& fingerprint) const;

 private:
  StepMetadata(const StepMetadataOptions& options, DeviceDriver* driver);
  absl::Status Allocate(int index);
  // The plan of steps whose rows have up to `max_query_len` queries, `max_tokens` in all.
  WorkMapOptions ClassMapOptions(int index, int max_tokens, int max_query_len) const;
  absl::Status AllocateWithin();
  // Memory for a map, and the map over it.
  absl::StatusOr<WorkMap> NewMap(const WorkMapOptions& options);
  // Of the largest step's rows.
  WorkMapOptions MapOptions(const AttentionParams& params, DType q_dtype,
                            const KernelChoice& kernels) const;
  WorkMapOptions MapOptions(const LayerSpec& layer) const {
    return MapOptions(layer.params, layer.q_dtype.value_or(options_.dtype), layer.kernels);
  }
  LayerWindow WindowOfClass(int index) const;
  void AllocateLocalRows(int index, int max_rows);
  absl::Status BuildClass(const StepBatches& batches, int index) const;
  void AddWithin(const StepArrays& arrays, StepBatches& batches) const;

  StepMetadataOptions options_;
  DeviceDriver* driver_;
  std::vector<WorkMap> before_maps_;           // one per class; empty without `within`
  std::vector<WorkMap> within_maps_;           // one of `within`
  std::vector<WorkMap> work_maps_;             // one per class
  std::vector<WorkMap> decode_maps_;           // one per class, in the memory of work_maps_
  std::vector<WorkMap> draft_maps_;            // one per class, there too
  std::vector<WorkMap> cascade_maps_;          // one per class, there too
  std::vector<LocalBatchBuffers> local_rows_;  // one per class; empty but for chunks
  std::vector<at::Tensor> memory_;             // what those point into
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_STEP_METADATA_H_
