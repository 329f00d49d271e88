// Copies tensors of a checkpoint into memory of a device, at the speed of the disk: several
// threads, each reading pieces of some megabytes, converting them on the way. To a GPU they go
// through pinned staging of a fixed size, one piece read while the one before is on its way.
//
//   const TensorCopy copies[] = {{.source = &q, .target = qkv.narrow(0, 0, 4096)}, ...};
//   REPRISE_RETURN_IF_ERROR(RunTensorCopies(checkpoint, copies, {.on_progress = show}));
//
// Memory beside the targets: two pieces a thread, whatever the size of the tensors; nothing of the
// files becomes part of this process.

#ifndef EXAMPLES_LLAMA_TENSOR_COPIES_H_
#define EXAMPLES_LLAMA_TENSOR_COPIES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "examples/llama/checkpoint.h"
#include "examples/llama/tensor_view.h"

namespace reprise {

struct TensorCopy {
  // Of the checkpoint; float16, bfloat16, float32 or float64.
  const TensorView* source = nullptr;
  // Contiguous, of the same shape; float32, float16 or bfloat16. All targets are on one device.
  at::Tensor target = {};
  // Of each head of so many rows first the even rows, then the odd ones: RopePairs::kNeighbours;
  // but the first `kept_rows` of a head stay as they are. Divides the rows; without those, even.
  std::optional<int> unzipped_head = {};
  int kept_rows = 0;
};

struct TensorCopyOptions {
  // At least 1; nothing: one a core, but 8 for a GPU, which is more than its link takes.
  std::optional<int> num_threads = {};
  // Called now and then, by the calling thread, with the bytes of the files that have been read;
  // the last time with all.
  std::function<void(int64_t num_bytes, int64_t total_bytes)> on_progress = {};
};

// Returns when the targets hold the values. Errors, with the targets undefined: those of
// Checkpoint::Read(), ResourceExhausted or Internal from the device.
absl::Status RunTensorCopies(const Checkpoint& checkpoint, absl::Span<const TensorCopy> copies,
                             const TensorCopyOptions& options);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_TENSOR_COPIES_H_
