// Changes logits before a token is chosen from them, in place and in one pass: penalties for tokens
// that have occurred, biases, and masks of allowed tokens, by the definitions of
// runner/sampling/logits_params.h.
//
//   LaunchLogitsProcessors({.dtype = DType::kBFloat16, .logits = logits, .logits_stride = vocab_size,
//                           .num_rows = 16, .sample_slot = arrays.sample_slot, .slots = slots,
//                           .allowed_tokens = masks, .mask_stride = MaskWords(vocab_size),
//                           .num_masks = 2, .mask_of_row = mask_of_row}, stream);
//
// Penalties and biases are the slot's; a mask is the row's, since it changes with each token. Rows
// that do not sample, and rows of default parameters without a mask, are neither read nor written.
// A token that is not allowed gets -inf, whatever its logit is. Sample() never chooses -inf, and
// reports a row of which nothing else is left (kNanRow). All other NaN stay.
//
// Host and device form compute the same bits: float32, single operations of IEEE 754, one rounding to
// the type of the logits.
//
// Thread safety: none. The device form takes one launch, does not synchronise or allocate, and may
// be captured. Cost: of a row with penalties, its counts (2 bytes a token) and the logits of tokens
// that have occurred; of a mask, its bits, and writing what it excludes.

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/logits_processors_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument naming the field.
absl::Status CheckLogitsProcessors(const LogitsProcessorsArgs& args);

// REQUIRES: the check is OK. Allocates only at a thread's first call and when the vocabulary grows.
void LogitsProcessorsOnHost(const LogitsProcessorsArgs& args);

// The same over device memory; masks and mask_of_row may be mapped host memory. Errors: those of the
// check, before any call of CUDA; Internal if CUDA refuses the launch. Only in builds with CUDA
// (target logits_processors_cuda).
absl::Status LaunchLogitsProcessors(const LogitsProcessorsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_H_
