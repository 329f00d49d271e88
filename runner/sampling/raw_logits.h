// Keeps the logits of rows whose log-probabilities are asked for, before logits processors change
// them in place: log-probabilities are those of the raw logits (runner/sampling/log_probs.h).
//
//   LaunchKeepRawLogits({.dtype = DType::kBFloat16, .logits = logits, .logits_stride = vocab_size,
//                        .raw = raw, .raw_stride = vocab_size, .num_rows = 16,
//                        .vocab_size = vocab_size, .sample_slot = arrays.sample_slot,
//                        .params = logits_slots.params, .num_slots = 64}, stream);
//
// Only for steps that have both, rows with log-probabilities and rows with processors. Other rows
// are neither read nor written.
//
// Thread safety: none. The device form takes one launch, does not synchronise or allocate, and may
// be captured. Cost: reading and writing the rows that ask.

#ifndef REPRISE_RUNNER_SAMPLING_RAW_LOGITS_H_
#define REPRISE_RUNNER_SAMPLING_RAW_LOGITS_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/raw_logits_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays. Errors: InvalidArgument naming the field.
absl::Status CheckKeepRawLogits(const RawLogitsArgs& args);

// REQUIRES: the check is OK.
void KeepRawLogitsOnHost(const RawLogitsArgs& args);

// The same over device memory. Errors: those of the check, before any call of CUDA; Internal if CUDA
// refuses the launch. Only in builds with CUDA (target raw_logits_cuda).
absl::Status LaunchKeepRawLogits(const RawLogitsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_RAW_LOGITS_H_
