// Arguments of the updates of LogitsSlots, and the rules for a single entry, shared by the host and
// device forms (runner/sampling/logits_state.h).

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_STATE_ARGS_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_STATE_ARGS_H_

#include <cstdint>

#include "reprise/runner/sampling/logits_params.h"

namespace reprise {

// A sequence that enters a slot. Offsets refer to the step's lists.
struct LogitsJoin {
  int32_t slot = 0;
  LogitsParams params = {};
  int32_t first_bias = 0;  // the first of params.num_biases biases
  // The sequence's tokens so far: prompt tokens, then output tokens. Counted only if the sequence
  // has penalties. A sequence that was preempted also passes its output.
  int32_t first_token = 0;
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;
};

struct JoinLogitsArgs {
  const LogitsJoin* joins = nullptr;  // [num_joins] distinct slots
  const LogitBias* biases = nullptr;  // [num_biases] biases of all joins
  const int32_t* tokens = nullptr;    // [num_tokens] tokens of all joins
  int num_joins = 0;
  int num_biases = 0;
  int num_tokens = 0;
  LogitsSlots slots = {};
};

struct CountTokensArgs {
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  const int32_t* last_token = nullptr;   // [num_slots] as written by Sample()
  int num_rows = 0;
  LogitsSlots slots = {};
};

constexpr bool IsRange(int64_t first, int64_t count, int64_t size) {
  return first >= 0 && count >= 0 && first + count <= size;
}

// Whether the join's lists are within the step's arrays. Otherwise, the slot gets the default.
constexpr bool HasLists(const LogitsJoin& join, const JoinLogitsArgs& args) {
  if (join.params.num_biases > args.slots.max_biases ||
      !IsRange(join.first_bias, join.params.num_biases, args.num_biases)) {
    return false;
  }
  return join.num_prompt_tokens >= 0 && join.num_output_tokens >= 0 &&
         IsRange(join.first_token, int64_t{join.num_prompt_tokens} + join.num_output_tokens,
                 args.num_tokens);
}

constexpr LogitsParams ParamsOf(const LogitsJoin& join, const JoinLogitsArgs& args) {
  return HasLists(join, args) ? join.params : LogitsParams();
}

// Returns the new count of token `i` of the join's list. Tokens with i < num_prompt_tokens belong
// to the prompt.
constexpr TokenCount WithTokenOfJoin(const LogitsJoin& join, int64_t i, TokenCount count) {
  return i < join.num_prompt_tokens ? WithPromptToken(count) : WithOutputToken(count);
}

// Returns the count to increment for row `row`'s new token, or null if the token is not counted.
constexpr TokenCount* CountOfNewToken(const CountTokensArgs& args, int row) {
  const int32_t slot = args.sample_slot[row];
  if (!args.slots.has(slot) || !args.slots.counts_tokens(args.slots.params[slot])) return nullptr;
  const int32_t token = args.last_token[slot];
  if (token < 0 || token >= args.slots.vocab_size) return nullptr;
  return args.slots.counts_of(slot) + token;
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_STATE_ARGS_H_
