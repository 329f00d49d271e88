// Rejection sampling of drafts: one team of CTAs per position (runner/sampling/sampling_team.cuh),
// over the model's logits and the logits that the draft was sampled from.
//  1. For each of the two rows of logits, or only for the model's row if the draft was not sampled,
//     computes the largest logit, the threshold, and the mass of the kept tokens.
//  2. If the draft is accepted, the team stores it and returns. Otherwise it applies Gumbel-max to
//     the logarithms of max(0, p - q). Philox runs only for tokens that can still win.
// Teams of positions that need no decision (DraftPlaceOf()) return immediately.
//
// Bound: the passes of Sample(), over at most two rows of logits per position.
//
//   T         float, __half, __nv_bfloat16
//   kVector   logits per load of a thread: 16 bytes, or 1 logit if rows are not aligned

#include <cuda_runtime.h>

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/base/cuda_status.h"
#include "reprise/base/status_macros.h"
#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/logits_row.cuh"
#include "reprise/runner/sampling/sampling_team.cuh"
#include "reprise/runner/speculation/reject_drafts.h"

namespace reprise {
namespace {

using sampling::CanFormClusters;
using sampling::kThreads;
using sampling::LaunchTeams;
using sampling::SharedMemory;
using sampling::Team;
using sampling::Threshold;

// Returns total 0 if no token of the row can be chosen.
template <typename T, int kVector>
__device__ KeptTokens KeptTokensOfRow(const LogitsRow<T, kVector>& row, Team& team,
                                      const SamplingParams& params) {
  const uint64_t largest = team.Max(row.Largest(team));
  if (!CanBeChosen(largest)) return {};
  const float max_logit = ToFloat(row.logits[TokenOf(largest)]);
  KeptTokens kept = WithThreshold(Threshold(row, team, params, max_logit), max_logit, params);
  uint64_t total[1] = {0};
  row.ForEach(team, [&](int, float logit) { total[0] += kept.MassOfLogit(logit); });
  team.Sum(total);
  kept.total = total[0];
  return kept;
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads)
    RejectDraftsKernel(RejectDraftsArgs args, int team_size) {
  __shared__ SharedMemory shared;
  const int logits_row = args.first_row + static_cast<int>(blockIdx.x) / team_size;
  const int rank = static_cast<int>(blockIdx.x) % team_size;
  const DraftPlace place = DraftPlaceOf(args, logits_row);
  if (place.slot < 0) return;  // the whole team
  const SamplingParams params = args.slots.params[place.slot];
  const LogitsRow<T, kVector> row = {
      static_cast<const T*>(args.logits) + logits_row * args.logits_stride, args.vocab_size};
  const LogitsRow<T, kVector> draft_row = {
      static_cast<const T*>(args.draft_logits) +
          (place.draft_row < 0 ? 0 : place.draft_row * args.draft_logits_stride),
      args.vocab_size};

  Team team(shared, rank, team_size);
  const KeptTokens kept = KeptTokensOfRow(row, team, params);
  if (kept.total == 0) return;
  KeptTokens draft;
  if (place.draft_row >= 0) draft = KeptTokensOfRow(draft_row, team, params);
  const bool is_drawn = draft.total != 0;
  const double p = kept.ProbabilityOf(ToFloat(row.logits[place.draft]));
  const double q = is_drawn ? draft.ProbabilityOf(ToFloat(draft_row.logits[place.draft])) : 1.0;
  if (AcceptsDraft(params.seed, place.sample_index, p, q)) {
    if (rank == 0 && threadIdx.x == 0) args.chosen[logits_row] = place.draft;
    return;
  }

  uint64_t best = kNoChoice;
  float best_score = -__int_as_float(0x7f800000);
  row.ForEachPiece(team, [&](int first, const float(&logits)[kVector]) {
    int bits_group = -1;
    PhiloxBlock bits;
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      if (kept.MassOfLogit(logits[j]) == 0) continue;
      const int token = first + j;
      const double q_of_token = is_drawn ? draft.ProbabilityOf(ToFloat(draft_row.logits[token]))
                                         : (token == place.draft ? 1.0 : 0.0);
      float log_weight = 0.0f;
      if (!ResidualOf(kept.ProbabilityOf(logits[j]), q_of_token, log_weight)) continue;
      if (log_weight + kMaxGumbel < best_score) continue;  // cannot win
      if (token / 4 != bits_group) {
        bits_group = token / 4;
        bits = RejectionBits(params.seed, place.sample_index, kTokenNumbers, bits_group);
      }
      // selected without indexing, which would put `bits` into local memory
      const int lane = token % 4;
      const uint32_t low = lane == 0 ? bits.word[0] : bits.word[1];
      const uint32_t high = lane == 2 ? bits.word[2] : bits.word[3];
      const float score = log_weight + GumbelOf(lane < 2 ? low : high);
      const uint64_t choice = PackChoice(OrderKey(score), token);
      if (choice > best) best = choice;
      if (score > best_score) best_score = score;
    }
  });
  best = team.Max(best);
  if (rank == 0 && threadIdx.x == 0 && KeyOf(best) != 0) args.chosen[logits_row] = TokenOf(best);
}

template <typename T, int kVector>
cudaError_t Launch(const RejectDraftsArgs& args, cudaStream_t stream) {
  const auto kernel = RejectDraftsKernel<T, kVector>;
  // One value for all devices of the process, which are assumed to be identical.
  static const bool can_form_clusters = CanFormClusters(kernel);
  return LaunchTeams<T, kVector>(kernel, args, args.num_rows, args.vocab_size, can_form_clusters,
                                 stream);
}

}  // namespace

absl::Status LaunchRejectDrafts(const RejectDraftsArgs& args, CUstream_st* stream) {
  REPRISE_RETURN_IF_ERROR(CheckRejectDrafts(args));
  if (args.num_rows == 0) return absl::OkStatus();
  const cudaError_t error = VisitDeviceType(args.dtype, [&](auto zero) {
    using T = decltype(zero);
    const bool is_aligned = IsAlignedForVectors<T>(args.logits, args.logits_stride) &&
                            (args.draft_logits == nullptr ||
                             IsAlignedForVectors<T>(args.draft_logits, args.draft_logits_stride));
    return is_aligned ? Launch<T, kFullVector<T>>(args, stream) : Launch<T, 1>(args, stream);
  });
  return CudaStatus(error, "LaunchRejectDrafts");
}

}  // namespace reprise
