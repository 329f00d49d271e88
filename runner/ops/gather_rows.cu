// Copies rows by index. Rows with an index out of range become zero.
//
// A CTA copies kThreads words of one row; a word is as wide as pointers, strides and the row's size
// allow: 16, 4, 2 or 1 bytes. Rows are on the grid's x, whose limit is large; the CTAs of a row are
// on y.
//
// Bound: bytes, twice per row: 256 rows of 8 KB are 4 MB, 1 us at 4 TB/s. Small batches cost two
// dependent loads and the launch. A step hides most of the launch: this kernel starts before the
// previous kernel has ended, and lets the next kernel start early, for example the GEMM of the
// head, which loads its weights in the meantime (base/dependent_launch.cuh).

#include "reprise/base/cuda_status.h"
#include "reprise/base/dependent_launch.cuh"
#include "reprise/runner/ops/gather_rows_args.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;

template <typename Word>
__global__ void GatherRowsKernel(GatherRowsArgs args) {
  TriggerDependents();
  GridDependencySync();
  const int64_t i = blockIdx.x;
  const int64_t num_words = args.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t word = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (word >= num_words) return;
  const int64_t index = args.indices[i] - args.first_row;
  Word value = {};
  if (index >= 0 && index < args.num_rows) {
    const char* row = static_cast<const char*>(args.table) + index * args.table_stride_bytes;
    value = reinterpret_cast<const Word*>(row)[word];
  }
  char* out = static_cast<char*>(args.out) + i * args.out_stride_bytes;
  reinterpret_cast<Word*>(out)[word] = value;
}

template <typename Word>
cudaError_t Launch(const GatherRowsArgs& args, cudaStream_t stream) {
  const int64_t num_words = args.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t ctas_a_row = (num_words + kThreads - 1) / kThreads;
  if (ctas_a_row > 65535) return cudaErrorInvalidValue;  // grid's y: at most 268 MB per row
  const dim3 grid(args.num_indices, static_cast<unsigned>(ctas_a_row));
  return LaunchDependent(GatherRowsKernel<Word>, grid, kThreads, 0, stream, args);
}

cudaError_t LaunchForAlignment(const GatherRowsArgs& args, cudaStream_t stream) {
  // The lowest set bit of all these values determines the widest possible word.
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(args.table) | reinterpret_cast<uintptr_t>(args.out) |
      static_cast<uint64_t>(args.table_stride_bytes) |
      static_cast<uint64_t>(args.out_stride_bytes) | static_cast<uint64_t>(args.row_bytes);
  if (bits % 16 == 0) return Launch<int4>(args, stream);
  if (bits % 4 == 0) return Launch<int32_t>(args, stream);
  if (bits % 2 == 0) return Launch<int16_t>(args, stream);
  return Launch<int8_t>(args, stream);
}

}  // namespace

absl::Status LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  if (args.num_indices <= 0 || args.row_bytes <= 0) return absl::OkStatus();
  return CudaStatus(LaunchForAlignment(args, stream), "GatherRows");
}

}  // namespace reprise
