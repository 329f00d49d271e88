// A row of logits in a kernel, read by a team of threads. Each thread reads the same elements in
// every pass, so that passes after the first one read from L1 if the elements fit.
//
//   const LogitsRow<T, kVector> row = {logits, vocab_size};
//   row.ForEach(team, [&](int token, float logit) { ... });
//
// A team has thread(), the index of the calling thread, and num_threads(). Files that include this
// header must be compiled without contraction (runner/sampling/sampling_rules.h).
//
//   T         float, __half, __nv_bfloat16
//   kVector   logits per load: a vector of 16 bytes, or 1 element if rows are not aligned

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_ROW_CUH_
#define REPRISE_RUNNER_SAMPLING_LOGITS_ROW_CUH_

#include <cstdint>

#include "reprise/runner/ops/vector_access.cuh"
#include "reprise/runner/sampling/sampling_rules.h"

namespace reprise {

// A row's logits, distributed over the threads of a team.
template <typename T, int kVector>
struct LogitsRow {
  const T* logits;  // [size]
  int size;

  // Calls visit(first, values) for each group of kVector logits of this thread, in ascending order
  // of tokens. Missing values of the last group are NaN, which is never chosen.
  template <typename Team, typename Visit>
  __device__ void ForEachPiece(const Team& team, Visit visit) const {
    const int num_pieces = (size + kVector - 1) / kVector;
    for (int piece = team.thread(); piece < num_pieces; piece += team.num_threads()) {
      const int first = piece * kVector;
      float values[kVector];
      if (first + kVector <= size) {
        const Vector<T, kVector> vector = LoadVector<T, kVector>(logits + first);
#pragma unroll
        for (int j = 0; j < kVector; ++j) values[j] = ToFloat(vector.value[j]);
      } else {
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          values[j] = first + j < size ? ToFloat(logits[first + j]) : __int_as_float(0x7fffffff);
        }
      }
      visit(first, values);
    }
  }

  template <typename Team, typename Visit>
  __device__ void ForEach(const Team& team, Visit visit) const {
    ForEachPiece(team, [&](int first, const float(&values)[kVector]) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) visit(first + j, values[j]);
    });
  }

  // Returns this thread's largest choice, or kNoChoice. The maximum over the team is the row's
  // choice.
  template <typename Team>
  __device__ uint64_t Largest(const Team& team) const {
    uint32_t best_key = 0;
    int best_token = 0;
    ForEach(team, [&](int token, float logit) {
      const uint32_t key = OrderKey(logit);
      if (key > best_key) {  // tokens ascend, so the lower token wins among equals
        best_key = key;
        best_token = token;
      }
    });
    return best_key == 0 ? kNoChoice : PackChoice(best_key, best_token);
  }
};

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_ROW_CUH_
