// Work maps for the device of an operator's tensors: built on the current stream of a GPU, or by
// the host twin.

#ifndef ATTENTION_TORCH_OPS_DEVICE_WORK_H_
#define ATTENTION_TORCH_OPS_DEVICE_WORK_H_

#include <ATen/core/Tensor.h>

#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/attention_params.h"
#include "attention/paged_batch.h"
#include "attention/ragged_batch.h"
#include "attention/work_map.h"
#include "attention/work_map_rows.h"
#include "base/dtype.h"

namespace reprise {

// Multiprocessors of a GPU, the current one if `device` names none; of the CPU, a fixed number.
int NumSms(at::Device device);

// Fills `map` from the batch, on its device.
absl::Status BuildWork(const PagedBatch& batch, const LayerWindow& window, const WorkMap& map,
                       at::Device device);
absl::Status BuildWork(const RaggedBatch& batch, const LayerWindow& window, const WorkMap& map,
                       at::Device device);

// Plan and workspace of a caller, given both or neither.
struct WorkTensors {
  std::optional<at::Tensor> plan, workspace;
  bool deterministic = false;  // of a map that is made here
};

// The map that attention of `layer` over `batch` on q's device, multiplied in `products` if given,
// is to use: the caller's, or one that is allocated (`keep_alive` holds it) and built now. On the
// CPU none is needed.
absl::StatusOr<WorkMap> WorkFor(const WorkTensors& work, std::optional<DType> products,
                                const AttentionParams& layer, const PagedBatch& batch,
                                const at::Tensor& q, at::Tensor& keep_alive);
absl::StatusOr<WorkMap> WorkFor(const WorkTensors& work, std::optional<DType> products,
                                const AttentionParams& layer, const RaggedBatch& batch,
                                const at::Tensor& q, at::Tensor& keep_alive);

}  // namespace reprise

#endif  // ATTENTION_TORCH_OPS_DEVICE_WORK_H_
