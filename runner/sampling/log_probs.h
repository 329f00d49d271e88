// Log-probabilities of each row's token and of its most probable tokens, for the rows whose slots
// request them (LogitsParams::num_log_probs, num_known_log_probs).
//
//   LaunchLogProbs({.dtype = DType::kBFloat16, .logits = raw_logits, .logits_stride = vocab_size,
//                   .num_rows = 16, .vocab_size = vocab_size, .sample_slot = arrays.sample_slot,
//                   .params = logits_slots.params, .tokens = slots.last_token, .num_slots = 64,
//                   .max_top = 5, .out = log_probs}, stream);
//
// `row_tokens` gives each row its token explicitly, for example the tokens of a prompt, of which a
// slot has many rows. Otherwise the row's token is the token of its slot. `of_known_tokens` selects
// which of the two requests of a slot applies to the rows.
//
// The results are log_softmax of the given logits, in float32, without temperature. Pass the
// model's raw logits, from before penalties, biases and masks, as vLLM's engine v1 does by default
// (logprobs_mode "raw_logprobs"). Logits processors change logits in place, so a row that uses both
// needs a copy of its raw logits (runner/sampling/raw_logits.h).
//
// NaN logits count as absent. The log-probability is NaN if the row has no logit above -inf, if the
// token's logit is NaN, or if the token is outside the vocabulary. The rank of such a token is 0.
// If a row has no logit above -inf, or fewer tokens than it requests, the remaining entries of its
// top are token -1 with NaN.
//
// The host and the device form compute bitwise identical results, because they sum integers. The
// results are within 1e-6 of float64, or within 1e-7 of the value if that is larger.
//
// Thread safety: none. The device form uses one launch, does not synchronise or allocate, and may
// be captured. Cost: rows that request nothing are not read. Other rows are read twice, plus about
// 2 us per entry of the top.

#ifndef REPRISE_RUNNER_SAMPLING_LOG_PROBS_H_
#define REPRISE_RUNNER_SAMPLING_LOG_PROBS_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/log_probs_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument, naming the field.
absl::Status CheckLogProbs(const LogProbsArgs& args);

// REQUIRES: CheckLogProbs() is OK. Allocates only at a thread's first call and when the vocabulary
// grows.
void LogProbsOnHost(const LogProbsArgs& args);

// The device form; `out` may be mapped host memory. Errors: those of CheckLogProbs(), before any
// CUDA call; Internal if the CUDA launch fails. Only in builds with CUDA (target log_probs_cuda).
absl::Status LaunchLogProbs(const LogProbsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOG_PROBS_H_
