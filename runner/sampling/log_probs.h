// Log-probabilities of each row's token and of its most probable tokens, for the rows whose slots ask
// for them (LogitsParams::num_log_probs, num_known_log_probs).
//
//   LaunchLogProbs({.dtype = DType::kBFloat16, .logits = raw_logits, .logits_stride = vocab_size,
//                   .num_rows = 16, .vocab_size = vocab_size, .sample_slot = arrays.sample_slot,
//                   .params = logits_slots.params, .tokens = slots.last_token, .num_slots = 64,
//                   .max_top = 5, .out = log_probs}, stream);
//
// `row_tokens` gives each row a token of its own in place of its slot's: those of a prompt, for
// example, of which a slot has many rows. `of_known_tokens` says which of a slot's two requests the
// rows are for.
//
// They are log_softmax of the logits that are given, in float32, without temperature. Give it the
// model's raw logits, from before penalties, biases and masks, as vLLM's engine v1 does by default
// (logprobs_mode "raw_logprobs"). Logits processors change logits in place, so a row that has both
// needs a copy of its raw logits (runner/sampling/raw_logits.h).
//
// NaN logits count as absent. A row without a logit above -inf, and a token that is NaN or outside
// the vocabulary, have the log-probability NaN. If a row has less tokens than it asks for, the rest
// of its top is token -1 with NaN. The rank of such a token is 0.
//
// Host and device form give the same tokens and the same bits: sums are sums of integers. Within
// 1e-6 of float64, or 1e-7 of the value if that is more.
//
// Thread safety: none. The device form takes one launch, does not synchronise or allocate, and may
// be captured. Cost: rows that do not ask are not read; others are read twice, and about 2 us for
// each of the top.

#ifndef REPRISE_RUNNER_SAMPLING_LOG_PROBS_H_
#define REPRISE_RUNNER_SAMPLING_LOG_PROBS_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/log_probs_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument naming the field.
absl::Status CheckLogProbs(const LogProbsArgs& args);

// REQUIRES: the check is OK. Allocates only at a thread's first call and when the vocabulary grows.
void LogProbsOnHost(const LogProbsArgs& args);

// The same over device memory; `out` may be mapped host memory. Errors: those of the check, before
// any call of CUDA; Internal if CUDA refuses the launch. Only in builds with CUDA (target
// log_probs_cuda).
absl::Status LaunchLogProbs(const LogProbsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOG_PROBS_H_
