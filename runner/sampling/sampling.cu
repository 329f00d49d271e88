// Sampling from logits, one launch for all rows.
//
// A team of CTAs serves a row: a cluster of up to 8 CTAs on sm_90 and later, otherwise one CTA.
// Each thread reads the same logits in every pass, so that later passes read from L1 if the part
// fits.
// 1. Finds the largest logit, with the lowest token among equals. Greedy rows end here.
// 2. Top-k: finds the largest threshold that k logits reach. Top-p: finds the largest threshold
//    whose tokens reach the probability top_p. Each pass narrows an interval of order keys to an
//    eighth, with counts or masses at 7 pivots in registers: no sort, no histogram, no atomics.
// 3. Draws with Gumbel-max over the kept tokens. Philox and the test of min_p run only for tokens
//    that can still win.
//
// All sums are sums of integers and all choices are maxima of integers, so the result does not
// depend on the team's size or the order of threads.
//
// Bound of greedy rows: bytes. 256 rows of 128256 bfloat16 are 66 MB, 17 us at 4 TB/s; a single row
// costs the launch, a reduction and a cluster barrier, about 5 us. Bound of other rows: 2 to 25
// passes. A pass reads a CTA's part of the row from L1 and has one exchange between the CTAs (about
// 2 us). A threshold needs up to 6 passes for bfloat16, 7 for float16 and 11 for float32.
//
//   T         float, __half, __nv_bfloat16
//   kVector   logits per load: a vector of 16 bytes, or 1 element if rows are not aligned

#include "reprise/base/cuda_status.h"
#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/logits_row.cuh"
#include "reprise/runner/sampling/sampling_args.h"
#include "reprise/runner/sampling/sampling_rules.h"
#include "reprise/runner/sampling/sampling_team.cuh"

namespace reprise {
namespace {

using sampling::CanFormClusters;
using sampling::Draw;
using sampling::kThreads;
using sampling::LaunchTeams;
using sampling::SharedMemory;
using sampling::Team;
using sampling::Threshold;

template <typename T, int kVector, bool kGeneral>
__global__ void __launch_bounds__(kThreads) SampleKernel(SamplingArgs args, int team_size) {
  __shared__ SharedMemory shared;
  const int row_idx = blockIdx.x / team_size;
  const int rank = blockIdx.x % team_size;
  const int32_t slot = args.sample_slot[row_idx];
  if (slot < 0 || slot >= args.slots.num_slots) {
    if (rank == 0 && threadIdx.x == 0) args.out[row_idx] = kNotSampled;
    return;  // the whole team
  }
  const LogitsRow<T, kVector> row = {
      static_cast<const T*>(args.logits) + row_idx * args.logits_stride, args.vocab_size};
  // All threads of the team read sample_index before the barriers; the first thread advances it
  // afterwards.
  const bool only_draws = args.sample_offset != nullptr;
  const int64_t sample_index =
      args.slots.sample_index[slot] + (only_draws ? args.sample_offset[row_idx] : 0);

  Team team(shared, rank, team_size);
  uint64_t choice = team.Max(row.Largest(team));
  if constexpr (kGeneral) {
    const SamplingParams params = args.slots.params[slot];
    if (!IsGreedy(params) && CanBeChosen(choice)) {
      const float max_logit = ToFloat(row.logits[TokenOf(choice)]);
      choice = Draw(row, team, Threshold(row, team, params, max_logit), /*first_token=*/0, params,
                    sample_index, max_logit);
    }
  }
  if (rank == 0 && threadIdx.x == 0) {
    const int32_t token = CanBeChosen(choice) ? TokenOf(choice) : kNanRow;
    args.out[row_idx] = token;
    if (only_draws) return;
    args.slots.last_token[slot] = token == kNanRow ? 0 : token;
    args.slots.sample_index[slot] = sample_index + 1;
  }
}

template <typename T, int kVector, bool kGeneral>
cudaError_t Launch(const SamplingArgs& args, cudaStream_t stream) {
  const auto kernel = SampleKernel<T, kVector, kGeneral>;
  // The result is shared by all devices of the process, which are assumed to be of the same kind.
  static const bool can_form_clusters = CanFormClusters(kernel);
  return LaunchTeams<T, kVector>(kernel, args, args.num_rows, args.vocab_size, can_form_clusters,
                                 stream);
}

}  // namespace

absl::Status LaunchSampling(const SamplingArgs& args, cudaStream_t stream) {
  if (args.num_rows <= 0 || args.vocab_size <= 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool is_greedy = args.features == SamplingFeatures::kGreedy;
    if (IsAlignedForVectors<T>(args.logits, args.logits_stride)) {
      constexpr int kVector = kFullVector<T>;
      return is_greedy ? Launch<T, kVector, false>(args, stream)
                       : Launch<T, kVector, true>(args, stream);
    }
    return is_greedy ? Launch<T, 1, false>(args, stream) : Launch<T, 1, true>(args, stream);
  });
  return CudaStatus(error, "Sample");
}

}  // namespace reprise
