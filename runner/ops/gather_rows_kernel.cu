// Copies rows by index; rows of indices out of range become zero.
//
// A CTA copies kThreads words of one row; a word is as wide as pointers and strides allow. The
// rows' CTAs lie along x, which may be long.
//
// Bound: bytes, twice a row: 256 rows of 8 KB are 4 MB, 1 us at 4 TB/s. Small batches: the launch
// and two loads, one after the other.

#include <algorithm>

#include "runner/ops/gather_rows_kernel.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

template <typename Word>
__global__ void GatherRowsKernel(GatherRowsParams params) {
  const int64_t i = blockIdx.x;
  const int64_t num_words = params.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t word = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (word >= num_words) return;
  const int64_t index = params.indices[i];
  Word value = {};
  if (index >= 0 && index < params.num_rows) {
    const char* row = static_cast<const char*>(params.table) + index * params.table_stride_bytes;
    value = reinterpret_cast<const Word*>(row)[word];
  }
  char* out = static_cast<char*>(params.out) + i * params.out_stride_bytes;
  reinterpret_cast<Word*>(out)[word] = value;
}

template <typename Word>
cudaError_t Launch(const GatherRowsParams& params, cudaStream_t stream) {
  const int64_t num_words = params.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t ctas_a_row = (num_words + kThreads - 1) / kThreads;
  if (ctas_a_row > 65535) return cudaErrorInvalidValue;  // the limit of a grid's y: 268 MB a row
  GatherRowsKernel<Word>
      <<<dim3(params.num_indices, static_cast<unsigned>(ctas_a_row)), kThreads, 0, stream>>>(
          params);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchGatherRows(const GatherRowsParams& params, cudaStream_t stream) {
  if (params.num_indices <= 0 || params.row_bytes <= 0) return cudaSuccess;
  // The lowest set bit of all of them tells the widest word that fits.
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(params.table) | reinterpret_cast<uintptr_t>(params.out) |
      static_cast<uint64_t>(params.table_stride_bytes) |
      static_cast<uint64_t>(params.out_stride_bytes) | static_cast<uint64_t>(params.row_bytes);
  if (bits % 16 == 0) return Launch<int4>(params, stream);
  if (bits % 4 == 0) return Launch<int32_t>(params, stream);
  if (bits % 2 == 0) return Launch<int16_t>(params, stream);
  return Launch<int8_t>(params, stream);
}

}  // namespace reprise
