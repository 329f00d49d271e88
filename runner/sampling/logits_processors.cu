// Logits processors: one launch over tiles of the vocabulary of all rows. Each logit is read and
// written at most once.
//
// A CTA processes kTile tokens of a row. It exits immediately if the row needs no processing.
// Otherwise it copies the tile's words of the mask and a map of the tile's biases to shared memory,
// so that the CTA reads each once, in whole lines (the mask may be in host memory). A thread then
// processes kVector tokens at a time. It first reads their counts, mask bits and biases, and reads
// their logits only if one of these requires it. A group of tokens that are all excluded is written
// without being read.
//
// Bound: bytes. 256 rows of 128256 bfloat16 with penalties read 66 MB of counts, 20 us at 3.3 TB/s,
// and the lines of logits whose tokens have occurred. With masks that exclude nearly all tokens,
// they write 66 MB and read 4 MB of masks over PCIe, about 80 us.
//
//   T         float, __half, __nv_bfloat16
//   kVector   logits per access: a vector of 16 bytes, or 1 element if rows are not aligned

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/logits_processors.h"

namespace reprise {
namespace {

constexpr int kThreads = 256;
constexpr int kTile = 4096;  // 32 CTAs for a row of 128256: a single row uses a quarter of a GPU
constexpr int kTileWords = kTile / 32;
static_assert(kTile % 32 == 0 && kTileWords <= kThreads);

struct SharedMemory {
  int32_t mask;                 // index of the row's mask
  int32_t allowed[kTileWords];  // the tile's words of the mask
  int32_t bias_entry[kTile];    // index in the row's list; -1: no bias
};

// Loads the tile's words of the mask. Words beyond the vocabulary are not read.
__device__ void FetchMask(const RowProcessors& row, int first_token, int vocab_size,
                          SharedMemory& shared) {
  const int64_t word = first_token / 32 + threadIdx.x;
  if (threadIdx.x < kTileWords && word < MaskWords(vocab_size)) {
    shared.allowed[threadIdx.x] = row.mask[word];
  }
}

// Maps the tile's tokens to their biases. The last bias of a token counts.
__device__ void MapBiases(const RowProcessors& row, int first_token, int num_tokens,
                          SharedMemory& shared) {
  for (int i = threadIdx.x; i < kTile; i += kThreads) shared.bias_entry[i] = -1;
  __syncthreads();
  for (int i = threadIdx.x; i < row.num_biases; i += kThreads) {
    const int64_t at = static_cast<int64_t>(row.biases[i].token) - first_token;
    if (at >= 0 && at < num_tokens) atomicMax(&shared.bias_entry[at], i);
  }
}

// Processes tokens [first, first + kVector) of the tile. REQUIRES: all of them are in the
// vocabulary.
template <typename T, int kVector>
__device__ void ProcessPiece(const RowProcessors& row, int first_token, int first, T* logits,
                             const SharedMemory& shared) {
  constexpr uint32_t kAll = kVector == 32 ? 0xffffffffu : (1u << kVector) - 1;
  // All kVector tokens are in one word of the mask, because kVector divides 32.
  const uint32_t allowed =
      row.mask == nullptr
          ? kAll
          : (static_cast<uint32_t>(shared.allowed[first / 32]) >> (first % 32)) & kAll;
  Vector<T, kVector> x;
  T* const at = logits + first_token + first;
  if (allowed == 0) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) x.value[j] = FromFloat<T>(kBannedLogit);
    StoreVector(at, x);
    return;
  }
  Vector<TokenCount, kVector> counts = {};
  if (row.counts != nullptr) {
    counts = LoadVector<TokenCount, kVector>(row.counts + first_token + first);
  }
  int32_t entry[kVector];
  bool is_touched = allowed != kAll;
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    entry[j] = row.num_biases > 0 ? shared.bias_entry[first + j] : -1;
    is_touched |= counts.value[j] != 0 || entry[j] >= 0;
  }
  if (!is_touched) return;
  x = LoadVector<T, kVector>(at);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    if (((allowed >> j) & 1) == 0) {
      x.value[j] = FromFloat<T>(kBannedLogit);
      continue;
    }
    const float logit = ToFloat(x.value[j]);
    if ((counts.value[j] == 0 && entry[j] < 0) || logit != logit) continue;
    const float bias = entry[j] >= 0 ? row.biases[entry[j]].bias : 0.0f;
    x.value[j] = FromFloat<T>(ProcessedLogit(logit, row.params, counts.value[j], bias));
  }
  StoreVector(at, x);
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    LogitsProcessorsKernel(const LogitsProcessorsArgs args, int tiles_of_row) {
  static_assert(32 % kVector == 0);
  __shared__ SharedMemory shared;
  const int row_idx = blockIdx.x / tiles_of_row;
  const int first_token = (blockIdx.x % tiles_of_row) * kTile;
  const int num_tokens = min(kTile, args.slots.vocab_size - first_token);
  int32_t mask = -1;
  if (args.allowed_tokens != nullptr) {
    if (threadIdx.x == 0) shared.mask = MaskOfRow(args, row_idx);
    __syncthreads();
    mask = shared.mask;
  }
  const RowProcessors row = RowProcessorsOf(args, row_idx, mask);
  if (!row.has_any()) return;  // the whole CTA
  if (row.mask != nullptr) FetchMask(row, first_token, args.slots.vocab_size, shared);
  if (row.num_biases > 0) MapBiases(row, first_token, num_tokens, shared);
  __syncthreads();

  T* const logits = static_cast<T*>(args.logits) + row_idx * args.logits_stride;
  const int num_pieces = num_tokens / kVector;
  for (int piece = threadIdx.x; piece < num_pieces; piece += kThreads) {
    ProcessPiece<T, kVector>(row, first_token, piece * kVector, logits, shared);
  }
  // The remaining tokens at the end of the vocabulary.
  const int last = num_pieces * kVector + threadIdx.x;
  if (last < num_tokens) ProcessPiece<T, 1>(row, first_token, last, logits, shared);
}

template <typename T, int kVector>
cudaError_t Launch(const LogitsProcessorsArgs& args, cudaStream_t stream) {
  const int tiles_of_row = (args.slots.vocab_size + kTile - 1) / kTile;
  const auto num_ctas = static_cast<unsigned>(args.num_rows) * static_cast<unsigned>(tiles_of_row);
  LogitsProcessorsKernel<T, kVector><<<num_ctas, kThreads, 0, stream>>>(args, tiles_of_row);
  return cudaGetLastError();
}

}  // namespace

absl::Status LaunchLogitsProcessors(const LogitsProcessorsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckLogitsProcessors(args));
  if (args.num_rows == 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    return IsAlignedForVectors<T>(args.logits, args.logits_stride)
               ? Launch<T, kFullVector<T>>(args, stream)
               : Launch<T, 1>(args, stream);
  });
  return CudaStatus(error, "LaunchLogitsProcessors");
}

}  // namespace reprise
