// Changes logits before a token is chosen from them, in place and in one pass: penalties for tokens
// that have occurred, biases, and masks of allowed tokens, as defined in
// runner/sampling/logits_params.h.
//
//   LaunchLogitsProcessors({.dtype = DType::kBFloat16, .logits = logits, .logits_stride = vocab_size,
//                           .num_rows = 16, .sample_slot = arrays.sample_slot, .slots = slots,
//                           .allowed_tokens = masks, .mask_stride = MaskWords(vocab_size),
//                           .num_masks = 2, .mask_of_row = mask_of_row}, stream);
//
// Penalties and biases belong to the slot. A mask belongs to the row, because it changes with each
// token. Rows that do not sample, and rows with default parameters and no mask, are neither read
// nor written. A token that is not allowed gets -inf for any logit. Sample() never chooses -inf,
// and reports rows that have no other logit (kNanRow). NaN logits of allowed tokens do not change.
//
// The host and the device form compute bitwise identical results: float32, single operations of
// IEEE 754, one rounding to the dtype of the logits.
//
// Thread safety: none. The device form uses one launch, does not synchronise or allocate, and may
// be captured. Cost of a row with penalties: reading its counts (2 bytes per token) and the logits
// at and near tokens that have occurred. Cost of a mask: reading its bits and writing the logits
// that it excludes.

#ifndef REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_H_
#define REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/logits_processors_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument, naming the field.
absl::Status CheckLogitsProcessors(const LogitsProcessorsArgs& args);

// REQUIRES: CheckLogitsProcessors() is OK. Allocates only at a thread's first call and when the
// vocabulary grows.
void LogitsProcessorsOnHost(const LogitsProcessorsArgs& args);

// The device form; masks and mask_of_row may be mapped host memory. Errors: those of
// CheckLogitsProcessors(), before any CUDA call; Internal if the CUDA launch fails. Only in builds
// with CUDA (target logits_processors_cuda).
absl::Status LaunchLogitsProcessors(const LogitsProcessorsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_LOGITS_PROCESSORS_H_
