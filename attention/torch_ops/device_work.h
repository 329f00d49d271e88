// Work maps for the device of an operator's tensors: built on the current stream of a GPU, or by
// the host form.

#ifndef REPRISE_ATTENTION_TORCH_OPS_DEVICE_WORK_H_
#define REPRISE_ATTENTION_TORCH_OPS_DEVICE_WORK_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/cuda/device_limits.h"
#include "reprise/attention/kernel_choice.h"
#include "reprise/attention/paged_batch.h"
#include "reprise/attention/ragged_batch.h"
#include "reprise/attention/work_map/work_map.h"
#include "reprise/attention/work_map/work_map_build_args.h"

namespace reprise {

// The limits of a GPU (the current GPU if `device` has no index). Returns the defaults for the CPU.
absl::StatusOr<DeviceLimits> LimitsOf(at::Device device);

// Fills `map` from the batch, on its device.
absl::Status BuildWork(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map,
                       at::Device device);
absl::Status BuildWork(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map,
                       at::Device device);

// The caller's plan and workspace: both or neither.
struct WorkTensors {
  std::optional<at::Tensor> plan, workspace;
  bool deterministic = false;  // for a map that is made here
};

// The map for attention of `layer` over `batch` on q's device, for the kernels that the call wants:
// the caller's map, or one that is allocated (`keep_alive` holds it) and built now. The CPU needs no
// map.
absl::StatusOr<BatchWork> WorkFor(const WorkTensors& work, const KernelChoice& kernels,
                                  const AttentionParams& layer, const PagedBatch& batch,
                                  const at::Tensor& q, at::Tensor& keep_alive);
absl::StatusOr<BatchWork> WorkFor(const WorkTensors& work, const KernelChoice& kernels,
                                  const AttentionParams& layer, const RaggedBatch& batch,
                                  const at::Tensor& q, at::Tensor& keep_alive);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_TORCH_OPS_DEVICE_WORK_H_
