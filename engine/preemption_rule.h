// Whether a sequence that must give up its blocks is better moved to host memory and back, or
// computed again: estimated by measured costs.
//
//   const PreemptionCosts costs = H200PreemptionCosts();
//   // 4,000 tokens of 128 KB each, all of which would have to be computed again:
//   SwapOutPays(costs, {.num_recomputed = 4000, .num_left = 1, .swap_bytes = int64_t{500} << 20});
//
//   recomputing   us_per_prompt_token * (tokens - num_hidden_tokens), at least 0: so few tokens as
//                 a step computes while it reads its weights cost nothing
//   a swap        us_per_swap + bytes / rate, out and in, and recomputing the tokens that are left
//
// So long sequences are swapped and short ones computed again. The costs decide about speed only,
// never about texts.
//
// Thread safety: values and pure functions.

#ifndef REPRISE_ENGINE_PREEMPTION_RULE_H_
#define REPRISE_ENGINE_PREEMPTION_RULE_H_

#include <cstdint>
#include <ostream>

#include "absl/status/status.h"

namespace reprise {

// What becomes of the keys of a sequence that is preempted.
enum class PreemptionMode : int8_t {
  kAuto,       // whichever is estimated to cost less time
  kRecompute,  // computed again
  kSwap,       // moved to host memory, while there is room
};

std::ostream& operator<<(std::ostream& out, PreemptionMode mode);

struct PreemptionCosts {
  // Microseconds that a step takes longer for each token of a prompt in it. Depends on the model:
  // in proportion to its weights.
  double us_per_prompt_token = 0;
  // Tokens of a prompt that a step computes without taking longer.
  int num_hidden_tokens = 0;
  // 1e9 bytes a second between pinned host memory and the device.
  double out_gb_per_s = 0;
  double in_gb_per_s = 0;
  // Microseconds of a swap of few bytes, each way.
  double us_per_swap = 0;
};

// One H200 behind PCIe 5 x16, and a model of 8e9 parameters of 16 bits; docs/performance.md has the
// measurements. The products of 128 rows take 12 % more time than those of one, those of 256 rows
// take 25 us a row. Blocks of 2 MB go out and come in at 52 GB/s, one alone in 40 us.
constexpr PreemptionCosts H200PreemptionCosts() {
  return {.us_per_prompt_token = 25,
          .num_hidden_tokens = 128,
          .out_gb_per_s = 52,
          .in_gb_per_s = 52,
          .us_per_swap = 10};
}

// `costs` with the times of a model's own steps: one of `num_tokens` tokens of prompts, and one of a
// single token, which takes the time of reading the weights. REQUIRES: num_tokens >= 1. Times that
// are not above 0 leave `costs` as they are.
PreemptionCosts WithMeasuredSteps(PreemptionCosts costs, int num_tokens, double largest_us,
                                  double least_us);

// Errors: InvalidArgument, naming the field, for rates that are not positive and times or counts
// that are negative.
absl::Status CheckPreemptionCosts(const PreemptionCosts& costs);

// A sequence that must leave its blocks, or whose blocks are in host memory.
struct PreemptionCase {
  int64_t num_recomputed = 0;  // tokens to compute without a swap: those that no cached block has
  int64_t num_left = 0;        // tokens to compute in spite of a swap
  int64_t swap_bytes = 0;      // one way
};

// Whether moving the blocks out now, and in later, takes less time than computing.
bool SwapOutPays(const PreemptionCosts& costs, const PreemptionCase& preempted);

// Whether moving blocks in that are in host memory takes less time than computing.
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
