// Unstable: any version may change this header (docs/embedding.md).
//
// Copies tensors of a checkpoint into memory of a device, at the speed of the disk: several threads
// each read pieces of some megabytes and convert them. Copies to a GPU go through pinned staging of
// a fixed size; a thread reads one piece while the previous one is being copied.
//
//   const TensorCopy copies[] = {{.source = &q, .target = qkv.narrow(0, 0, 4096)}, ...};
//   REPRISE_RETURN_IF_ERROR(RunTensorCopies(checkpoint, copies, {.on_progress = show}));
//
// Memory in addition to the targets: two pieces per thread, for any size of the tensors. The files'
// pages do not become resident in this process.

#ifndef REPRISE_HF_TENSOR_COPIES_H_
#define REPRISE_HF_TENSOR_COPIES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "reprise/distributed/share.h"
#include "reprise/hf/checkpoint.h"
#include "reprise/hf/tensor_view.h"

namespace reprise {

struct TensorCopy {
  // Of the checkpoint; float16, bfloat16, float32 or float64; or the target's own type.
  const TensorView* source = nullptr;
  // Contiguous, with as many elements as are copied; float32, float16 or bfloat16, or, not
  // transposed, float8_e4m3fn. All targets are on one device.
  at::Tensor target = {};
  // Whether the target holds the source's last two dimensions swapped: of a source [..., rows,
  // columns] each matrix as [columns, rows]. Each is read as a whole.
  bool is_transposed = false;
  // Rows per head, if each head's even rows are copied first, then its odd rows
  // (RopePairs::kNeighbours). The first `kept_rows` of a head keep their order. Rows are those of
  // the target. REQUIRES: divides the number of rows, transposed that of a matrix; even after
  // subtracting kept_rows.
  std::optional<int> unzipped_head = {};
  int kept_rows = 0;
  // Of the source's last dimension, what is copied: the target is that of a source of these columns
  // alone, and only they are read. nullopt: all.
  std::optional<Share> columns = {};
};

// The row of the target that row `row` of the source becomes, in heads of `head` rows, of which the
// first `kept` keep their order, as in TensorCopy.
int64_t UnzippedRow(int64_t row, int64_t head, int64_t kept);

struct TensorCopyOptions {
  // At least 1. nullopt: one per core, for a GPU at most 8, which is more than its link can use.
  std::optional<int> num_threads = {};
  // Called from time to time, by the calling thread, with the bytes of the files that have been
  // read; the last time with all.
  std::function<void(int64_t num_bytes, int64_t total_bytes)> on_progress = {};
};

// Returns when the targets hold the values. Errors, with the targets undefined: those of
// Checkpoint::Read(), ResourceExhausted or Internal from the device.
absl::Status RunTensorCopies(const Checkpoint& checkpoint, absl::Span<const TensorCopy> copies,
                             const TensorCopyOptions& options);

}  // namespace reprise

#endif  // REPRISE_HF_TENSOR_COPIES_H_
