#include "reprise/runner/sampling/logits_state.h"

#include <algorithm>
#include <cstdint>

#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status CheckJoinLogits(const JoinLogitsArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckLogitsSlots(args.slots));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_joins", args.num_joins, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_biases", args.num_biases, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_tokens", args.num_tokens, 0));
  if (args.num_joins > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("joins", args.joins));
  if (args.num_biases > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("biases", args.biases));
  if (args.num_tokens > 0) REPRISE_RETURN_IF_ERROR(CheckGiven("tokens", args.tokens));
  return absl::OkStatus();
}

absl::Status CheckCountTokens(const CountTokensArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckLogitsSlots(args.slots));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_rows", args.num_rows, 0));
  if (args.num_rows == 0) return absl::OkStatus();
  REPRISE_RETURN_IF_ERROR(CheckGiven("sample_slot", args.sample_slot));
  return CheckGiven("last_token", args.last_token);
}

void JoinLogitsOnHost(const JoinLogitsArgs& args) {
  for (int j = 0; j < args.num_joins; ++j) {
    const LogitsJoin& join = args.joins[j];
    if (!args.slots.has(join.slot)) continue;
    const LogitsParams params = ParamsOf(join, args);
    args.slots.params[join.slot] = params;
    if (params.num_biases > 0) {
      std::copy_n(args.biases + join.first_bias, params.num_biases,
                  args.slots.biases_of(join.slot));
    }
    if (!args.slots.counts_tokens(params)) continue;
    TokenCount* counts = args.slots.counts_of(join.slot);
    std::fill_n(counts, TokenCountStride(args.slots.vocab_size), TokenCount{0});
    const int64_t num_tokens = int64_t{join.num_prompt_tokens} + join.num_output_tokens;
    for (int64_t i = 0; i < num_tokens; ++i) {
      const int32_t token = args.tokens[join.first_token + i];
      if (token < 0 || token >= args.slots.vocab_size) continue;
      counts[token] = WithTokenOfJoin(join, i, counts[token]);
    }
  }
}

void CountTokensOnHost(const CountTokensArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    TokenCount* count = CountOfNewToken(args, row);
    if (count != nullptr) *count = WithOutputToken(*count);
  }
}

}  // namespace reprise
