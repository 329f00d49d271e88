// Copies the logits of rows that request log-probabilities (num_log_probs), before stages change
// them in place: log-probabilities are computed from raw logits (runner/sampling/log_probs.h).
//
//   LaunchKeepRawLogits({.dtype = DType::kBFloat16, .logits = logits, .logits_stride = vocab_size,
//                        .raw = raw, .raw_stride = vocab_size, .num_rows = 16,
//                        .vocab_size = vocab_size, .sample_slot = arrays.sample_slot,
//                        .params = logits_slots.params, .num_slots = 64}, stream);
//
// Needed only in steps that have rows with log-probabilities and also rows with processors or with
// stages of the user. Other rows are neither read nor written.
//
// Thread safety: none. The device form uses one launch, does not synchronise or allocate, and may
// be captured. Cost: reading and writing the rows that request log-probabilities.

#ifndef REPRISE_RUNNER_SAMPLING_RAW_LOGITS_H_
#define REPRISE_RUNNER_SAMPLING_RAW_LOGITS_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/raw_logits_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays. Errors: InvalidArgument, naming the
// field.
absl::Status CheckKeepRawLogits(const RawLogitsArgs& args);

// REQUIRES: CheckKeepRawLogits() is OK.
void KeepRawLogitsOnHost(const RawLogitsArgs& args);

// The device form. Errors: those of CheckKeepRawLogits(), before any CUDA call; Internal if the
// CUDA launch fails. Only in builds with CUDA (target raw_logits_cuda).
absl::Status LaunchKeepRawLogits(const RawLogitsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_RAW_LOGITS_H_
