#include "reprise/runner/parts/step_embeddings.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include "reprise/base/status_macros.h"
#include "reprise/base/torch_dtype.h"
#include "reprise/base/torch_status.h"

namespace reprise {
namespace {

// Returns a tensor over the memory of `rows`.
at::Tensor TensorOver(const EmbeddingRows& rows) {
  const c10::Device device = rows.gpu == kHostMemory
                                 ? c10::Device(c10::kCPU)
                                 : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(rows.gpu));
  return at::from_blob(const_cast<void*>(rows.data), {rows.num_rows, rows.dim},
                       {rows.row_stride, 1},
                       at::TensorOptions(device).dtype(ToScalarType(rows.dtype)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepEmbeddings>> StepEmbeddings::Allocate(
    int max_tokens, const EmbeddingFormat& format, c10::Device device) {
  return CatchTorchOr([&]() -> absl::StatusOr<std::unique_ptr<StepEmbeddings>> {
    const at::TensorOptions options(device);
    return std::unique_ptr<StepEmbeddings>(new StepEmbeddings(
        at::zeros({max_tokens, format.dim}, options.dtype(ToScalarType(format.dtype))),
        at::zeros({max_tokens, 1}, options.dtype(at::kBool))));
  });
}

absl::Status StepEmbeddings::Clear() {
  if (num_marked_ == 0) return absl::OkStatus();
  return CatchTorch([&] {
    is_embedded_.narrow(0, 0, num_marked_).zero_();
    num_marked_ = 0;
    return absl::OkStatus();
  });
}

absl::Status StepEmbeddings::Write(const ScheduledBatch& batch) {
  REPRISE_RETURN_IF_ERROR(Clear());
  return CatchTorch([&] {
    int row = 0;
    int64_t first_of_row = 0;  // index among the tokens of the step
    for (const ScheduledEmbeddings& range : batch.embeddings) {
      for (; row < range.row; ++row) first_of_row += batch.rows[row].query_len();
      const int64_t first = first_of_row + range.first_token;
      rows_.narrow(0, first, range.rows.num_rows)
          .copy_(TensorOver(range.rows), /*non_blocking=*/true);
      num_marked_ = first + range.rows.num_rows;
      is_embedded_.narrow(0, first, range.rows.num_rows).fill_(true);
    }
    return absl::OkStatus();
  });
}

int64_t StepEmbeddings::bytes() const {
  return static_cast<int64_t>(rows_.nbytes() + is_embedded_.nbytes());
}

void StepEmbeddings::AddTo(Fingerprint& fingerprint) const {
  fingerprint.AddAddress("embeddings", rows_.data_ptr());
  fingerprint.AddAddress("is_embedded", is_embedded_.data_ptr());
}

}  // namespace reprise
