// Sampling over shards of the vocabulary: a team of CTAs serves a row, as in sampling.cu.
//
// The top: the passes of top-k over the shard find the k-th largest key. One more pass counts the
// logits that equal this key and writes the keys above it, in any order. The choice: the keys of
// all tops determine the largest logit and the threshold; then the draw of sampling.cu runs over
// the shard.
//
// Bound: that of sampling.cu for a shard. The threshold compares each key with all others: less
// than 1 us for 2 x 50 keys; about 10 us for 8 x 256 keys.
//
//   T         float, __half, __nv_bfloat16
//   kVector   logits per load: a vector of 16 bytes, or 1 element if rows are not aligned

#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/logits_row.cuh"
#include "reprise/runner/sampling/sampling_rules.h"
#include "reprise/runner/sampling/sampling_team.cuh"
#include "reprise/runner/sampling/shard_sampling.h"

namespace reprise {
namespace {

using sampling::CanFormClusters;
using sampling::Draw;
using sampling::kConstantKeyBits;
using sampling::kThreads;
using sampling::LargestThreshold;
using sampling::LaunchTeams;
using sampling::SharedMemory;
using sampling::Team;

template <typename T, int kVector>
__device__ LogitsRow<T, kVector> RowOf(const ShardSamplingArgs& args, int row) {
  return {static_cast<const T*>(args.logits) + row * args.logits_stride, args.shard_size};
}

// Returns the k-th largest key of the row; 0 if the row has fewer than k numbers.
template <typename T, int kVector>
__device__ uint32_t KthKey(const LogitsRow<T, kVector>& row, Team& team, int k, uint32_t max_key) {
  if (k == 1 || max_key == 0) return max_key;
  const uint32_t key =
      LargestThreshold<false>(row, team, 0, max_key, k, [](float) { return uint64_t{1}; });
  // The low bits of a negative float's key are ones.
  constexpr uint32_t kLowBits = (1u << kConstantKeyBits<T>)-1;
  return key == 0 || (key >> 31) != 0 ? key : key | kLowBits;
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) ShardTopKernel(ShardSamplingArgs args, int team_size) {
  __shared__ SharedMemory shared;
  const int row_idx = blockIdx.x / team_size;
  Team team(shared, blockIdx.x % team_size, team_size);
  const int num_words = ShardTopWords(args.num_top);
  uint32_t* const top = args.top + static_cast<int64_t>(row_idx) * num_words;
  for (int i = team.thread(); i < num_words; i += team.num_threads()) top[i] = 0;
  const int32_t slot = SampledSlotOf(args, row_idx);
  if (slot == -1) return;  // the whole team
  int k = ShardTopOf(args.slots.params[slot], args.vocab_size);
  if (k == 0) return;
  if (k > args.num_top) k = args.num_top;

  const LogitsRow<T, kVector> row = RowOf<T, kVector>(args, row_idx);
  const uint32_t max_key = KeyOf(team.Max(row.Largest(team)));  // the zeros are written now
  const uint32_t lowest = KthKey(row, team, k, max_key);
  uint64_t count[1] = {0};
  row.ForEach(team, [&](int, float logit) {
    const uint32_t key = OrderKey(logit);
    if (key == 0) return;
    if (key == lowest) ++count[0];
    // top[1] temporarily counts the keys written; there are fewer than k.
    if (key > lowest) top[2 + atomicAdd(&top[1], 1u)] = key;
  });
  team.Sum(count);
  if (team.thread() == 0) {
    top[0] = lowest;
    top[1] = static_cast<uint32_t>(count[0]);
  }
}

// Returns the largest of the keys k >= `low` for which `weight`, summed over the keys >= k, reaches
// `target`, or 0 if no key does.
template <typename Weight>
__device__ uint32_t LargestKey(const ShardKeys& keys, Team& team, uint32_t low, uint64_t target,
                               Weight weight) {
  uint32_t best = 0;
  for (int i = team.thread(); i < keys.size(); i += team.num_threads()) {
    const uint32_t key = keys.KeyOf(i);
    if (key == 0 || key < low || key <= best) continue;
    uint64_t sum = 0;
    for (int j = 0; j < keys.size(); ++j) sum += keys.KeyOf(j) >= key ? weight(j) : 0;
    if (sum >= target) best = key;
  }
  return static_cast<uint32_t>(team.Max(best));
}

__device__ uint32_t ThresholdOf(const ShardKeys& keys, Team& team, const SamplingParams& params,
                                int vocab_size, float max_logit) {
  if (!HasTopK(params, vocab_size)) return 0;
  const int k = params.top_k < keys.num_top ? params.top_k : keys.num_top;
  const uint32_t threshold =
      LargestKey(keys, team, 0, k, [&](int i) { return uint64_t{keys.CountOf(i)}; });
  if (!HasTopP(params)) return threshold;
  const auto mass_of = [&](int i) {
    return keys.CountOf(i) *
           MassOf(ScaledDistance(FloatOfKey(keys.KeyOf(i)), max_logit, params.temperature));
  };
  uint64_t total[1] = {0};
  for (int i = team.thread(); i < keys.size(); i += team.num_threads()) {
    if (keys.KeyOf(i) != 0 && keys.KeyOf(i) >= threshold) total[0] += mass_of(i);
  }
  team.Sum(total);
  return LargestKey(keys, team, threshold, TopPTarget(params.top_p, total[0]), mass_of);
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    ShardChoiceKernel(ShardSamplingArgs args, int team_size) {
  __shared__ SharedMemory shared;
  const int row_idx = blockIdx.x / team_size;
  const int32_t slot = SampledSlotOf(args, row_idx);
  Team team(shared, blockIdx.x % team_size, team_size);
  const LogitsRow<T, kVector> row = RowOf<T, kVector>(args, row_idx);
  uint64_t choice = kNoChoice;
  if (slot != -1 && (args.num_top == 0 || IsGreedy(args.slots.params[slot]))) {
    const uint64_t largest = team.Max(row.Largest(team));
    if (KeyOf(largest) != 0) {
      choice = PackChoice(KeyOf(largest), args.first_token + TokenOf(largest));
    }
  } else if (slot != -1) {
    const SamplingParams params = args.slots.params[slot];
    const ShardKeys keys = ShardKeysOf(args, row_idx);
    uint32_t max_key = 0;
    for (int i = team.thread(); i < keys.size(); i += team.num_threads()) {
      if (keys.KeyOf(i) > max_key) max_key = keys.KeyOf(i);
    }
    max_key = static_cast<uint32_t>(team.Max(max_key));
    if (max_key > kLowestKey) {
      const float max_logit = FloatOfKey(max_key);
      const uint32_t threshold = ThresholdOf(keys, team, params, args.vocab_size, max_logit);
      choice = Draw(row, team, threshold, args.first_token, params, args.slots.sample_index[slot],
                    max_logit);
    }
  }
  if (team.thread() == 0) args.choices[row_idx] = choice;
}

__global__ void ShardTokensKernel(ShardSamplingArgs args) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row < args.num_rows) TakeBestChoice(args, row);
}

// Calls `visit.operator()<T, kVector>()` for the dtype and the alignment of the rows.
template <typename Visit>
cudaError_t VisitRows(const ShardSamplingArgs& args, Visit visit) {
  return VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    return IsAlignedForVectors<T>(args.logits, args.logits_stride)
               ? visit.template operator()<T, kFullVector<T>>()
               : visit.template operator()<T, 1>();
  });
}

}  // namespace

absl::Status LaunchShardTop(const ShardSamplingArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckShardSampling(args));
  if (args.num_rows == 0 || args.num_top == 0) return absl::OkStatus();
  const cudaError_t error = VisitRows(args, [&]<typename T, int kVector>() {
    const auto kernel = ShardTopKernel<T, kVector>;
    // The result is shared by all devices of the process, which are assumed to be of the same kind.
    static const bool can_form_clusters = CanFormClusters(kernel);
    return LaunchTeams<T, kVector>(kernel, args, args.num_rows, args.shard_size, can_form_clusters,
                                   stream);
  });
  return CudaStatus(error, "LaunchShardTop");
}

absl::Status LaunchShardChoice(const ShardSamplingArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckShardSampling(args));
  if (args.num_rows == 0) return absl::OkStatus();
  const cudaError_t error = VisitRows(args, [&]<typename T, int kVector>() {
    const auto kernel = ShardChoiceKernel<T, kVector>;
    static const bool can_form_clusters = CanFormClusters(kernel);
    return LaunchTeams<T, kVector>(kernel, args, args.num_rows, args.shard_size, can_form_clusters,
                                   stream);
  });
  return CudaStatus(error, "LaunchShardChoice");
}

absl::Status LaunchShardTokens(const ShardSamplingArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckShardSampling(args));
  if (args.num_rows == 0) return absl::OkStatus();
  constexpr int kRowsPerCta = 128;
  ShardTokensKernel<<<(args.num_rows + kRowsPerCta - 1) / kRowsPerCta, kRowsPerCta, 0, stream>>>(
      args);
  return CudaStatus(cudaGetLastError(), "LaunchShardTokens");
}

}  // namespace reprise
