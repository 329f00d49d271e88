// Embeddings that a caller brings in place of those of token ids: images, audio, and other inputs
// whose tokens are placeholders in the prompt.
//
// A plain view, without LibTorch: at::Tensor `rows` [n, dim] on a GPU is
//
//   {.data = rows.data_ptr(), .row_stride = rows.stride(0), .num_rows = n, .dim = dim,
//    .dtype = DType::kBFloat16, .gpu = rows.device().index()}
//
// Time. The owner keeps the memory alive and unchanged until the step that reads it has been
// awaited. What another stream writes there must be written before the step is launched. Rows on
// the GPU, and in pinned memory, are read in stream order; with rows in pageable memory the host
// may wait, at the launch, for the steps before it.

#ifndef REPRISE_RUNNER_SLOTS_EMBEDDING_ROWS_H_
#define REPRISE_RUNNER_SLOTS_EMBEDDING_ROWS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"

namespace reprise {

// The `gpu` of rows in memory of the host.
inline constexpr int kHostMemory = -1;

struct EmbeddingRows {
  const void* data = nullptr;
  int64_t row_stride = 0;  // elements from row to row, at least dim; a row is contiguous
  int num_rows = 0;
  int dim = 0;
  DType dtype = DType::kFloat32;
  int gpu = kHostMemory;  // the index of the GPU that holds them

  const void* row(int64_t i) const {
    return static_cast<const char*>(data) + i * row_stride * SizeOf(dtype);
  }
  // Rows [first, first + count). REQUIRES: they exist.
  EmbeddingRows Part(int first, int count) const {
    EmbeddingRows part = *this;
    part.data = row(first);
    part.num_rows = count;
    return part;
  }
};

// The rows that a runner takes.
struct EmbeddingFormat {
  int dim = 0;  // 0: none, the model takes token ids only
  DType dtype = DType::kFloat32;
  int gpu = kHostMemory;  // of the runner; rows of the host are taken in any case
};

// Errors: InvalidArgument, "embeddings[3]: dim ...", where `argument` is "embeddings[3]": rows in
// another format, on another GPU, none at all, or none in memory.
absl::Status CheckEmbeddingRows(std::string_view argument, const EmbeddingRows& rows,
                                const EmbeddingFormat& format);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_EMBEDDING_ROWS_H_
