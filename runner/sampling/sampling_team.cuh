// Shared by the kernels of sampling, with or without shards, and of rejection: the team of CTAs
// that chooses a token from a row of logits, its reductions, the thresholds of top-k and top-p, and
// draws. Other kernels should not include this header, because its names are very general.
//
// A team of CTAs serves a row: a cluster of up to 8 CTAs on sm_90 and later, otherwise one CTA.
// Files that include this header must be compiled without contraction
// (runner/sampling/sampling_rules.h).

#ifndef REPRISE_RUNNER_SAMPLING_SAMPLING_TEAM_CUH_
#define REPRISE_RUNNER_SAMPLING_SAMPLING_TEAM_CUH_

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/logits_row.cuh"
#include "reprise/runner/sampling/sampling_rules.h"

namespace reprise::sampling {

constexpr int kThreads = 512;
constexpr int kWarpSize = 32;
constexpr int kWarps = kThreads / kWarpSize;
constexpr int kMaxTeam = 8;  // portable cluster size
constexpr int kPivots = 7;   // pivots that divide an interval into 8
// Number of CTAs that fill the largest GPUs. Beyond that, more CTAs per row would only add
// barriers.
constexpr int kWantedCtas = 512;

// Number of low bits of a key that are equal in all logits of the type, except for the sign.
template <typename T>
inline constexpr int kConstantKeyBits = 0;
template <>
inline constexpr int kConstantKeyBits<__half> = 13;
template <>
inline constexpr int kConstantKeyBits<__nv_bfloat16> = 16;

struct SharedMemory {
  uint64_t warp[kPivots][kWarps];
  uint64_t team[2][kPivots][kMaxTeam];  // written by all CTAs of the team
};

// The CTAs of a row, with reductions. All threads of the team call the same functions in the same
// order. Without clusters, a team is one CTA.
class Team {
 public:
  __device__ Team(SharedMemory& shared, int rank, int size)
      : shared_(shared), rank_(rank), size_(size) {
    Sync();  // another CTA's shared memory may be written only after that CTA has started
  }

  // Reduces each value over all threads with `op`. All threads get the results.
  template <int kValues, typename Op>
  __device__ void AllReduce(uint64_t (&value)[kValues], Op op) {
    const int warp = threadIdx.x / kWarpSize;
    const int lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      value[j] = ReduceWarp<kWarpSize>(value[j], op);
      if (lane == 0) shared_.warp[j][warp] = value[j];
    }
    __syncthreads();
    parity_ ^= 1;  // other threads may still read the values of the previous exchange
    if (warp < kValues) {
      const uint64_t sum = ReduceWarp<kWarps>(shared_.warp[warp][lane % kWarps], op);
      if (lane < size_) *InCta(lane, &shared_.team[parity_][warp][rank_]) = sum;
    }
    Sync();
#pragma unroll
    for (int j = 0; j < kValues; ++j) {
      value[j] = shared_.team[parity_][j][0];
      for (int rank = 1; rank < size_; ++rank)
        value[j] = op(value[j], shared_.team[parity_][j][rank]);
    }
  }

  __device__ uint64_t Max(uint64_t value) {
    uint64_t values[1] = {value};
    AllReduce(values, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    return values[0];
  }

  template <int kValues>
  __device__ void Sum(uint64_t (&values)[kValues]) {
    AllReduce(values, [](uint64_t a, uint64_t b) { return a + b; });
  }

  // The index of this thread in the team, and the team's number of threads.
  __device__ int thread() const { return rank_ * kThreads + threadIdx.x; }
  __device__ int num_threads() const { return size_ * kThreads; }

 private:
  // Reduces over groups of kLanes consecutive lanes. All lanes get the result.
  template <int kLanes, typename Op>
  __device__ static uint64_t ReduceWarp(uint64_t value, Op op) {
#pragma unroll
    for (int offset = kLanes / 2; offset > 0; offset /= 2) {
      value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
  }

  __device__ static void Sync() {
#if __CUDA_ARCH__ >= 900
    cooperative_groups::this_cluster().sync();
#else
    __syncthreads();
#endif
  }

  __device__ static uint64_t* InCta([[maybe_unused]] int rank, uint64_t* local) {
#if __CUDA_ARCH__ >= 900
    return cooperative_groups::this_cluster().map_shared_rank(local, rank);
#else
    return local;
#endif
  }

  SharedMemory& shared_;
  int rank_;
  int size_;
  int parity_ = 0;
};

// Returns the largest threshold t >= `low` for which weight(logit), summed over keys >= t, reaches
// `target`, or `low` if there is none. Weights of keys below `low` are not counted. With
// `kStopAtEqual`, the result may be any threshold whose sum is exactly `target`. REQUIRES: `low` is
// a multiple of 2^kConstantKeyBits; no key is above max_key.
template <bool kStopAtEqual, typename T, int kVector, typename Weight>
__device__ uint32_t LargestThreshold(const LogitsRow<T, kVector>& row, Team& team, uint32_t low,
                                     uint32_t max_key, uint64_t target, Weight weight) {
  constexpr int kShift = kConstantKeyBits<T>;
  uint32_t begin = low >> kShift;                               // its sum reaches target
  uint64_t end = static_cast<uint64_t>(max_key >> kShift) + 1;  // its sum does not
  while (end - begin > 1) {
    uint32_t pivot[kPivots];
    uint64_t sum[kPivots] = {};
#pragma unroll
    for (int j = 0; j < kPivots; ++j) {
      pivot[j] = begin + static_cast<uint32_t>((end - begin) * (j + 1) / (kPivots + 1));
    }
    row.ForEach(team, [&](int, float logit) {
      const uint32_t key = OrderKey(logit) >> kShift;
      if (key < pivot[0]) return;
      const uint64_t w = weight(logit);
#pragma unroll
      for (int j = 0; j < kPivots; ++j) sum[j] += key >= pivot[j] ? w : 0;
    });
    team.Sum(sum);
    for (int j = 0; j < kPivots; ++j) {
      if (kStopAtEqual && sum[j] == target) return pivot[j] << kShift;
      if (sum[j] >= target) {
        begin = pivot[j];
      } else {
        end = pivot[j];
        break;
      }
    }
  }
  return begin << kShift;
}

// Returns a threshold: top_k and top_p keep the tokens whose keys are at least this, except NaN.
template <typename T, int kVector>
__device__ uint32_t Threshold(const LogitsRow<T, kVector>& row, Team& team,
                              const SamplingParams& params, float max_logit) {
  const uint32_t max_key = OrderKey(max_logit);
  uint32_t threshold = 0;
  if (HasTopK(params, row.size)) {
    // The key of NaN is 0, so NaN only counts for a threshold of 0, which keeps all tokens.
    threshold = LargestThreshold<true>(row, team, 0, max_key, params.top_k,
                                       [](float) { return uint64_t{1}; });
  }
  if (!HasTopP(params)) return threshold;
  const auto mass_of = [&](float logit) {
    return MassOf(ScaledDistance(logit, max_logit, params.temperature));
  };
  uint64_t total[1] = {0};
  row.ForEach(team, [&](int, float logit) {
    if (OrderKey(logit) >= threshold) total[0] += mass_of(logit);
  });
  team.Sum(total);
  return LargestThreshold<false>(row, team, threshold, max_key, TopPTarget(params.top_p, total[0]),
                                 mass_of);
}

// Draws from the tokens whose keys are at least `threshold` and that min_p keeps. Returns the best
// packed draw, or kNoChoice if no such token can win. The row's first logit belongs to first_token.
template <typename T, int kVector>
__device__ uint64_t Draw(const LogitsRow<T, kVector>& row, Team& team, uint32_t threshold,
                         int32_t first_token, const SamplingParams& params, int64_t sample_index,
                         float max_logit) {
  const uint64_t min_mass = MinMass(params);
  uint64_t best = kNoChoice;
  // The token of the largest logit is kept, and its score is at least kMinGumbel.
  float best_score = kMinGumbel;
  row.ForEachPiece(team, [&](int first, const float(&logits)[kVector]) {
    int bits_group = -1;
    PhiloxBlock bits;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const uint32_t key = OrderKey(logits[j]);
      if (key < threshold || key == 0) continue;
      const float distance = ScaledDistance(logits[j], max_logit, params.temperature);
      if (distance + kMaxGumbel < best_score) continue;  // cannot win
      if (!KeepsMass(min_mass, distance)) continue;
      const int token = first_token + first + j;
      if (token / 4 != bits_group) {
        bits_group = token / 4;
        bits = RandomBitsOf(params, sample_index, bits_group);
      }
      const int lane = token % 4;  // selected without indexing, which would move `bits` to memory
      const uint32_t low = lane == 0 ? bits.word[0] : bits.word[1];
      const uint32_t high = lane == 2 ? bits.word[2] : bits.word[3];
      const float score = distance + GumbelOf(lane < 2 ? low : high);
      const uint64_t choice = PackChoice(OrderKey(score), token);
      if (choice > best) best = choice;
      if (score > best_score) best_score = score;
    }
  });
  return team.Max(best);
}

// Whether this kernel's loaded code uses clusters and the device supports them.
template <typename Kernel>
bool CanFormClusters(Kernel kernel) {
  cudaFuncAttributes attributes;
  int device = 0;
  int major = 0;
  return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90 &&
         cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

// Launches `kernel(args, team_size)` with one team for each of `num_rows` rows.
template <typename T, int kVector, typename Args>
cudaError_t LaunchTeams(void (*kernel)(Args, int), const Args& args, int num_rows, int vocab_size,
                        bool can_form_clusters, cudaStream_t stream) {
  int team_size = 1;
  if (can_form_clusters) {
    // Adds CTAs only while some thread has more than one vector of logits.
    while (team_size < kMaxTeam && 2 * team_size * num_rows <= kWantedCtas &&
           team_size * kThreads * kVector < vocab_size) {
      team_size *= 2;
    }
  }
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(team_size), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(num_rows * team_size);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = team_size > 1 ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args, team_size);
}

}  // namespace reprise::sampling

#endif  // REPRISE_RUNNER_SAMPLING_SAMPLING_TEAM_CUH_
