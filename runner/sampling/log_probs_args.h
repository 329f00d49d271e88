// Arguments of log-probabilities, and their arithmetic; shared by the host and device forms
// (runner/sampling/log_probs.h), which compute the same bits: files that include this one must be
// compiled without contraction (runner/sampling/sampling_rules.h).

#ifndef REPRISE_RUNNER_SAMPLING_LOG_PROBS_ARGS_H_
#define REPRISE_RUNNER_SAMPLING_LOG_PROBS_ARGS_H_

#include <cstdint>
#include <limits>

#include "reprise/base/dtype.h"
#include "reprise/runner/sampling/logits_params.h"
#include "reprise/runner/sampling/sampling_rules.h"

namespace reprise {

// Where log-probabilities are written. Arrays may be mapped host memory. Rows that ask for none are
// not written.
struct LogProbs {
  float* token_log_probs = nullptr;  // [num_rows] of the row's token
  // [num_rows] 1 + the number of tokens with a larger logit; may be absent
  int32_t* token_ranks = nullptr;
  // [num_rows, max_top] the most probable tokens, the lower id first among equals, and theirs. The
  // first of a row, as many as it asks for, are written. Absent with max_top 0.
  int32_t* top_tokens = nullptr;
  float* top_log_probs = nullptr;
};

struct LogProbsArgs {
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  const void* logits = nullptr;   // [num_rows, vocab_size]
  int64_t logits_stride = 0;      // elements, from row to row
  int num_rows = 0;
  int vocab_size = 0;
  const int32_t* sample_slot = nullptr;  // [num_rows] as for Sample()
  // [num_slots] only num_log_probs is read, or num_known_log_probs with `of_known_tokens`.
  const LogitsParams* params = nullptr;
  const int32_t* tokens = nullptr;  // [num_slots] such as last_token, after Sample()
  // [num_rows] the row's token; absent: that of its slot in `tokens`, which may be absent otherwise.
  const int32_t* row_tokens = nullptr;
  bool of_known_tokens = false;
  int num_slots = 0;
  int max_top = 0;  // columns, at most kMaxTopLogProbs; a row that asks for more gets so many
  LogProbs out = {};
};

// How many of the top a row asks for; -1: the row asks for nothing.
constexpr int NumTopOf(const LogProbsArgs& args, int row) {
  const int32_t slot = args.sample_slot[row];
  if (slot < 0 || slot >= args.num_slots) return -1;
  const LogitsParams& params = args.params[slot];
  const int asked = args.of_known_tokens ? params.num_known_log_probs : params.num_log_probs;
  return asked < 0 ? -1 : (asked < args.max_top ? asked : args.max_top);
}

// The token of a row that asks.
constexpr int32_t LogProbTokenOf(const LogProbsArgs& args, int row) {
  return args.row_tokens != nullptr ? args.row_tokens[row] : args.tokens[args.sample_slot[row]];
}

inline constexpr float kNoLogProb = std::numeric_limits<float>::quiet_NaN();

// What all log-probabilities of a row are computed from.
struct RowLogProbs {
  float max_logit = 0.0f;
  float log_total = 0.0f;  // log of the sum of exp(logit - max_logit)

  constexpr float Of(float logit) const {
    return ScaledDistance(logit, max_logit, 1.0f) - log_total;
  }
};

// `total`: the sum of MassOf(ScaledDistance(logit, max_logit, 1)) over the row, in units of 2^-40.
// What a mass lacks adds up to 2^-40 a token: 1.2e-7 for 128256 tokens.
constexpr RowLogProbs RowLogProbsOf(float max_logit, uint64_t total) {
  return {max_logit, LogOf(static_cast<float>(total) * 0x1p-40f)};
}

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOG_PROBS_ARGS_H_
