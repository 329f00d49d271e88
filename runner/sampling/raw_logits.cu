// Copies raw logits. A CTA copies a tile of a row, in vectors of 16 bytes if both rows are aligned,
// and element by element otherwise. Bound: bytes; each row that requests log-probabilities is read
// and written once.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/raw_logits.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 8192;

// T: an unsigned integer of the size of the logits, so that NaN payloads are preserved.
template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    KeepRawLogitsKernel(const RawLogitsArgs args, int tiles_of_row) {
  const int row = blockIdx.x / tiles_of_row;
  if (!KeepsRaw(args, row)) return;  // the whole CTA
  const int first = (blockIdx.x % tiles_of_row) * kTile;
  const int num_tokens = min(kTile, args.vocab_size - first);
  const T* from = static_cast<const T*>(args.logits) + row * args.logits_stride + first;
  T* to = static_cast<T*>(args.raw) + row * args.raw_stride + first;
  const int num_pieces = num_tokens / kVector;
  for (int piece = threadIdx.x; piece < num_pieces; piece += kThreads) {
    StoreVector(to + piece * kVector, LoadVector<T, kVector>(from + piece * kVector));
  }
  const int last = num_pieces * kVector + threadIdx.x;
  if (last < num_tokens) to[last] = from[last];
}

template <typename T>
cudaError_t Launch(const RawLogitsArgs& args, cudaStream_t stream) {
  const int tiles_of_row = (args.vocab_size + kTile - 1) / kTile;
  const auto num_ctas = static_cast<unsigned>(args.num_rows) * static_cast<unsigned>(tiles_of_row);
  if (IsAlignedForVectors<T>(args.logits, args.logits_stride) &&
      IsAlignedForVectors<T>(args.raw, args.raw_stride)) {
    KeepRawLogitsKernel<T, kFullVector<T>><<<num_ctas, kThreads, 0, stream>>>(args, tiles_of_row);
  } else {
    KeepRawLogitsKernel<T, 1><<<num_ctas, kThreads, 0, stream>>>(args, tiles_of_row);
  }
  return cudaGetLastError();
}

}  // namespace

absl::Status LaunchKeepRawLogits(const RawLogitsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckKeepRawLogits(args));
  if (args.num_rows == 0) return absl::OkStatus();
  return CudaStatus(
      SizeOf(args.dtype) == 4 ? Launch<uint32_t>(args, stream) : Launch<uint16_t>(args, stream),
      "LaunchKeepRawLogits");
}

}  // namespace reprise
