// Embeddings that a caller passes instead of token ids: images, audio, and other inputs whose
// tokens in the prompt are placeholders.
//
// A plain view that does not depend on LibTorch. For an at::Tensor `rows` [n, dim] on a GPU:
//
//   {.data = rows.data_ptr(), .row_stride = rows.stride(0), .num_rows = n, .dim = dim,
//    .dtype = DType::kBFloat16, .gpu = rows.device().index()}
//
// Lifetime: the owner must keep the memory alive and unchanged until the step that reads it has
// been awaited. Writes by another stream must complete before the step is launched. Rows on the GPU
// and in pinned memory are read in stream order. For rows in pageable memory, the launch may block
// until the earlier steps have completed.

#ifndef REPRISE_RUNNER_SLOTS_EMBEDDING_ROWS_H_
#define REPRISE_RUNNER_SLOTS_EMBEDDING_ROWS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "reprise/base/dtype.h"

namespace reprise {

// Value of `gpu` for rows in host memory.
inline constexpr int kHostMemory = -1;

struct EmbeddingRows {
  const void* data = nullptr;
  int64_t row_stride = 0;  // elements between rows, at least dim; each row is contiguous
  int num_rows = 0;
  int dim = 0;
  DType dtype = DType::kFloat32;
  int gpu = kHostMemory;  // index of the GPU that holds the rows

  const void* row(int64_t i) const {
    return static_cast<const char*>(data) + i * row_stride * SizeOf(dtype);
  }
  // Returns rows [first, first + count). REQUIRES: 0 <= first, first + count <= num_rows.
  EmbeddingRows Part(int first, int count) const {
    EmbeddingRows part = *this;
    part.data = row(first);
    part.num_rows = count;
    return part;
  }
};

// The format of the rows that a runner accepts.
struct EmbeddingFormat {
  int dim = 0;  // 0: the model accepts only token ids
  DType dtype = DType::kFloat32;
  int gpu = kHostMemory;  // the runner's GPU; rows in host memory are always accepted
};

// Checks that `rows` have this format, are not empty, have data and a valid stride, and are in host
// memory or on format.gpu. Errors: InvalidArgument that begins with `argument`: "embeddings[3]: dim
// ...".
absl::Status CheckEmbeddingRows(std::string_view argument, const EmbeddingRows& rows,
                                const EmbeddingFormat& format);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SLOTS_EMBEDDING_ROWS_H_
