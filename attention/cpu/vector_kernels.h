// The inner loops of attention on the CPU, compiled once per instruction set and selected at run
// time.
//
//   const VectorKernels& kernels = BestVectorKernels();
//   kernels.dots(q, num_q, keys, num_keys, dim, scores, score_stride);
//
// Every kernel computes each element of its result with the same operations in the same order, for
// all counts and positions of the element. Results therefore do not depend on the rest of the tile.
//
// Padding: `lanes` is the number of floats in a vector. Vectors for dots() and accumulate() are
// padded to a multiple of `lanes`, with zeros in q and keys and any finite numbers in values. Rows
// of scores are readable and writable up to the next multiple of kMaxLanes.
//
// Thread safety: pure functions.

#ifndef REPRISE_ATTENTION_CPU_VECTOR_KERNELS_H_
#define REPRISE_ATTENTION_CPU_VECTOR_KERNELS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "reprise/base/dtype.h"

namespace reprise {

// The vectors that accumulate() sums, and their weights for each row of the result.
struct WeightedValues {
  const float* weights = nullptr;  // weights[i * weight_stride + j] is the weight of value j in row
                                   // i
  int64_t weight_stride = 0;
  const float* const* values = nullptr;  // [num_values], each [dim]
  int num_values = 0;
  int dim = 0;  // a multiple of `lanes`
};

struct VectorKernels {
  static constexpr int kMaxLanes = 16;
  // dots() processes keys in groups of this size. Callers pad the list of keys with valid pointers.
  static constexpr int kKeyGroup = 4;

  const char* name;
  int lanes;

  // Sets out[r * out_stride + i] = rows[r][i] for i < count, r < num_rows. `dtype` must not be
  // float64.
  void (*load)(const void* const* rows, int num_rows, DType dtype, int64_t count, float* out,
               int64_t out_stride);

  // Sets out[i] = in[i] * factor, rounded to dtype: float32, float16 or bfloat16.
  void (*store)(const float* in, float factor, int64_t count, DType dtype, void* out);

  // Sets scores[i * score_stride + j] = dot(q + i * dim, keys[j]). `dim` is a multiple of `lanes`,
  // and num_keys a multiple of kKeyGroup.
  void (*dots)(const float* q, int num_q, const float* const* keys, int num_keys, int dim,
               float* scores, int64_t score_stride);

  // Sets scores[j] = factor * scores[j] for j < count, rounded up to a multiple of `lanes`.
  void (*scale)(float* scores, int count, float factor);

  // Sets scores[j] = cap * tanh(scores[j] / cap) for j < count, rounded up to a multiple of
  // `lanes`.
  void (*soft_cap)(float* scores, int count, float cap);

  // Returns the largest score. REQUIRES: count > 0.
  float (*max)(const float* scores, int count);

  // Sets scores[j] = exp(scores[j] - largest), 0 for -infinity. Returns their sum.
  // REQUIRES: `largest` is finite.
  float (*exp_sum)(float* scores, int count, float largest);

  // For each row i < num_q: out[i * dim + d] = out[i * dim + d] * rescale[i] + the sum over j of
  // weights[i * weight_stride + j] * values[j][d], in the order of j.
  void (*accumulate)(const WeightedValues& values, int num_q, const float* rescale, float* out);
};

// Returns the widest kernels that this processor supports.
const VectorKernels& BestVectorKernels();

// Returns all kernels that this processor supports, widest last, for tests and benchmarks.
absl::Span<const VectorKernels* const> SupportedVectorKernels();

namespace internal {

// Constants, so that no code of their source files runs before the processor is checked. Null if
// the compiler's target lacks the instructions.
extern const VectorKernels* const kBaselineVectorKernels;
extern const VectorKernels* const kAvx2VectorKernels;
extern const VectorKernels* const kAvx512VectorKernels;

}  // namespace internal

}  // namespace reprise

#endif  // REPRISE_ATTENTION_CPU_VECTOR_KERNELS_H_
