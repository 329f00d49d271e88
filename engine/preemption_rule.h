// Estimates from measured costs whether a preempted sequence is better swapped to host memory and
// back, or recomputed.
//
//   const PreemptionCosts costs = H200PreemptionCosts();
//   // 4,000 tokens of 128 KB each, all of which would have to be computed again:
//   SwapOutPays(costs, {.num_recomputed = 4000, .num_left = 1, .swap_bytes = int64_t{500} << 20});
//
//   recomputing   us_per_prompt_token * (tokens - num_hidden_tokens), at least 0: tokens that a
//                 step computes while it reads its weights cost nothing
//   a swap        us_per_swap + bytes / rate, out and in, and recomputing the tokens that are left
//
// Long sequences are therefore swapped, and short sequences are recomputed. The choice affects the
// speed, and the output only by rounding.
//
// Thread safety: values and pure functions.

#ifndef REPRISE_ENGINE_PREEMPTION_RULE_H_
#define REPRISE_ENGINE_PREEMPTION_RULE_H_

#include <cstdint>
#include <ostream>

#include "absl/status/status.h"

namespace reprise {

// How a preempted sequence gets its keys back.
enum class PreemptionMode : int8_t {
  kAuto,       // by the method with the lower estimated time
  kRecompute,  // by computing the keys again
  kSwap,       // by a swap to host memory and back, if host memory has room
};

std::ostream& operator<<(std::ostream& out, PreemptionMode mode);

struct PreemptionCosts {
  // Additional microseconds per prompt token in a step. Proportional to the number of weights of
  // the model.
  double us_per_prompt_token = 0;
  // Number of prompt tokens that a step computes without taking longer.
  int num_hidden_tokens = 0;
  // Transfer rates between pinned host memory and the device, in units of 1e9 bytes per second.
  double out_gb_per_s = 0;
  double in_gb_per_s = 0;
  // Microseconds of a swap of a few bytes, per direction.
  double us_per_swap = 0;
};

// Costs for one H200 on PCIe 5 x16 and a 16-bit model with 8e9 parameters, from the measurements in
// docs/performance.md. A step of 128 rows takes 12 % more GEMM time than a step of one row; at 256
// rows, GEMMs take 25 us per row. Blocks of 2 MB are copied at 52 GB/s in both directions; a single
// block takes 40 us.
constexpr PreemptionCosts H200PreemptionCosts() {
  return {.us_per_prompt_token = 25,
          .num_hidden_tokens = 128,
          .out_gb_per_s = 52,
          .in_gb_per_s = 52,
          .us_per_swap = 10};
}

// Returns `costs` with the step times of the model: `largest_us` for a step of `num_tokens` prompt
// tokens, and `min_us` for a step of one token, which takes as long as reading the weights.
// Returns `costs` unchanged if a time is not positive or largest_us is infinite. REQUIRES:
// num_tokens >= 1.
PreemptionCosts WithMeasuredSteps(PreemptionCosts costs, int num_tokens, double largest_us,
                                  double min_us);

// Errors: InvalidArgument, naming the field, for rates that are not positive, and for times or
// counts that are negative or infinite.
absl::Status CheckPreemptionCosts(const PreemptionCosts& costs);

// A sequence that is preempted, or that waits with its blocks in host memory.
struct PreemptionCase {
  // Tokens to compute without a swap: tokens whose blocks would not be found again and, at a
  // swap-out, the encoder's tokens.
  int64_t num_recomputed = 0;
  int64_t num_left = 0;    // tokens to compute even with a swap
  int64_t swap_bytes = 0;  // per direction
};

// Whether swapping the blocks out now and in later takes less time than recomputing.
bool SwapOutPays(const PreemptionCosts& costs, const PreemptionCase& preempted);

// Whether swapping blocks in from host memory takes less time than recomputing.
bool SwapInPays(const PreemptionCosts& costs, const PreemptionCase& preempted);

// Counts of swaps and of swapped blocks.
struct SwapStatistics {
  int64_t num_swap_outs = 0;  // preemptions by a swap; all others recompute
  int64_t num_swap_ins = 0;   // returns by a swap
  int64_t num_blocks_out = 0;
  int64_t num_blocks_in = 0;
};

}  // namespace reprise

#endif  // REPRISE_ENGINE_PREEMPTION_RULE_H_
