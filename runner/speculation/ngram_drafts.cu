// Searches n-grams with one CTA per row, in one pass over the row's history
// (runner/speculation/ngram_drafts_args.h). Each thread compares tokens of the history with the
// last token. It compares earlier tokens only where a token is equal.
//
// Bound: bytes of history, 4 per token, read by one SM: about 5 us for 32k tokens, and 3 us (a
// launch) for short histories. CTAs of rows without drafts return immediately.

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/speculation/ngram_drafts.h"

namespace reprise {
namespace {

constexpr int kThreads = 512;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kVector = 4;  // tokens per vector load
constexpr int kUnroll = 4;  // vector loads in flight per thread
constexpr unsigned kAllLanes = ~0u;

__device__ uint64_t WarpMax(uint64_t value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    const uint64_t other =
        __shfl_xor_sync(kAllLanes, static_cast<unsigned long long>(value), distance);
    value = value > other ? value : other;
  }
  return value;
}

// Tracks the best match that ends at a position of this thread.
class Search {
 public:
  __device__ Search(const NgramText& text, const int32_t* suffix, int min_ngram, int max_ngram)
      : text_(text), suffix_(suffix), min_ngram_(min_ngram), max_ngram_(max_ngram) {}

  __device__ void At(int32_t end, int32_t token) {
    if (token != text_.last_token) return;
    const int length = MatchLength(text_, suffix_, end, max_ngram_);
    const uint64_t rank = RankMatch(length, end, min_ngram_);
    best_ = best_ > rank ? best_ : rank;
  }

  __device__ uint64_t best() const { return best_; }

 private:
  const NgramText& text_;
  const int32_t* suffix_;
  int min_ngram_;
  int max_ngram_;
  uint64_t best_ = 0;
};

// Searches the positions starting at `first`, one token per load.
__device__ void SearchTokens(const NgramText& text, int32_t first, Search& search) {
  for (int32_t end = first + static_cast<int32_t>(threadIdx.x); end < text.last; end += kThreads) {
    search.At(end, text.history[end]);
  }
}

// Searches all full vectors. Returns the number of positions that they cover.
__device__ int32_t SearchVectors(const NgramText& text, Search& search) {
  const int4* vectors = reinterpret_cast<const int4*>(text.history);
  const int32_t num_vectors = text.last / kVector;
  for (int32_t first = threadIdx.x; first < num_vectors; first += kUnroll * kThreads) {
    int4 tokens[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int32_t v = first + u * kThreads;
      tokens[u] = v < num_vectors ? vectors[v] : int4{-1, -1, -1, -1};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int32_t end = (first + u * kThreads) * kVector;
      search.At(end, tokens[u].x);
      search.At(end + 1, tokens[u].y);
      search.At(end + 2, tokens[u].z);
      search.At(end + 3, tokens[u].w);
    }
  }
  return num_vectors * kVector;
}

__global__ void __launch_bounds__(kThreads)
    NgramDraftsKernel(const __grid_constant__ NgramDraftsArgs args) {
  __shared__ int32_t suffix[kMaxNgram];
  __shared__ uint64_t best_of_warp[kWarps];
  const NgramText text = NgramTextOf(args, static_cast<int>(blockIdx.x));
  if (text.num_drafts <= 0 || text.last_token < 0) return;  // the whole CTA
  const int i = static_cast<int>(threadIdx.x);
  if (i < args.max_ngram && i <= text.last) suffix[i] = text.at(text.last - i);
  __syncthreads();

  Search search(text, suffix, args.min_ngram, args.max_ngram);
  const bool is_aligned = reinterpret_cast<uintptr_t>(text.history) % sizeof(int4) == 0;
  SearchTokens(text, is_aligned ? SearchVectors(text, search) : 0, search);

  const uint64_t of_warp = WarpMax(search.best());
  if (i % kWarpSize == 0) best_of_warp[i / kWarpSize] = of_warp;
  __syncthreads();
  const uint64_t best = WarpMax(best_of_warp[i % kWarps]);
  if (best == 0) return;
  for (int d = i; d < text.num_drafts; d += kThreads) {
    text.drafts[d] = NgramDraftAt(text, EndOfMatch(best), d);
  }
}

}  // namespace

absl::Status LaunchNgramDrafts(const NgramDraftsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckNgramDrafts(args));
  if (args.num_rows == 0) return absl::OkStatus();
  NgramDraftsKernel<<<args.num_rows, kThreads, 0, stream>>>(args);
  return CudaStatus(cudaGetLastError(), "LaunchNgramDrafts");
}

}  // namespace reprise
