// Arguments and arithmetic of log-probabilities, shared by the host and device forms
// (runner/sampling/log_probs.h). The forms compute bitwise identical results. Files that include
// this header must be compiled without contraction (runner/sampling/sampling_rules.h).

#ifndef REPRISE_RUNNER_SAMPLING_LOG_PROBS_ARGS_H_
#define REPRISE_RUNNER_SAMPLING_LOG_PROBS_ARGS_H_

#include <cstdint>
#include <limits>

#include "reprise/base/dtype.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/sampling/sampling_rules.h"

namespace reprise {

// Outputs of log-probabilities. Arrays may be mapped host memory. Rows that request nothing are not
// written.
struct LogProbs {
  float* token_log_probs = nullptr;  // [num_rows] of the row's token
  // [num_rows] 1 + the number of tokens with a larger logit; may be null
  int32_t* token_ranks = nullptr;
  // [num_rows, max_top] the most probable tokens, with the lower id first among equals, and their
  // log-probabilities. Only the entries that a row requests are written. Null if max_top is 0.
  int32_t* top_tokens = nullptr;
  float* top_log_probs = nullptr;
};

struct LogProbsArgs {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  const void* logits = nullptr;   // [num_rows, vocab_size]
  int64_t logits_stride = 0;      // elements between rows
  int num_rows = 0;
  int vocab_size = 0;
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  // [num_slots] Only num_log_probs is read, or num_known_log_probs if `of_known_tokens`.
  const LogitsParams* params = nullptr;
  const int32_t* tokens = nullptr;  // [num_slots] for example last_token, after Sample()
  // [num_rows] the row's token. If null, the row's token is the token of its slot in `tokens`.
  // `tokens` may be null if this is not.
  const int32_t* row_tokens = nullptr;
  bool of_known_tokens = false;
  int num_slots = 0;
  int max_top = 0;  // columns, at most kMaxTopLogProbs; larger requests get this many
  LogProbs out = {};
};

// Returns the number of top tokens that a row requests. -1: the row requests nothing.
constexpr int NumTopOf(const LogProbsArgs& args, int row) {
  const int32_t slot = args.sample_slot[row];
  if (slot < 0 || slot >= args.num_slots) return -1;
  const LogitsParams& params = args.params[slot];
  const int asked = args.of_known_tokens ? params.num_known_log_probs : params.num_log_probs;
  return asked < 0 ? -1 : (asked < args.max_top ? asked : args.max_top);
}

// Returns the token of a row. REQUIRES: NumTopOf() is not -1.
constexpr int32_t LogProbTokenOf(const LogProbsArgs& args, int row) {
  return args.row_tokens != nullptr ? args.row_tokens[row] : args.tokens[args.sample_slot[row]];
}

inline constexpr float kNoLogProb = std::numeric_limits<float>::quiet_NaN();

// The values from which all log-probabilities of a row are computed.
struct RowLogProbs {
  float max_logit = 0.0f;
  float log_total = 0.0f;  // log of the sum of exp(logit - max_logit)

  constexpr float Of(float logit) const {
    return ScaledDistance(logit, max_logit, 1.0f) - log_total;
  }
};

// `total`: the sum of MassOf(ScaledDistance(logit, max_logit, 1)) over the row, in units of 2^-40.
// Rounding down loses at most 2^-40 per token: 1.2e-7 in total for 128256 tokens.
constexpr RowLogProbs RowLogProbsOf(float max_logit, uint64_t total) {
  return {max_logit, LogOf(static_cast<float>(total) * 0x1p-40f)};
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOG_PROBS_ARGS_H_
