// Accepts or rejects drafts by rejection sampling (DraftAcceptance::kRejection), and samples a
// replacement for a rejected draft. Runs between Sample() and the verification:
//
//   Sample({.logits = logits, ..., .sample_offset = arrays.sample_offset, .out = chosen});
//   LaunchRejectDrafts({.logits = logits, ..., .chosen = chosen}, stream);
//   LaunchAcceptDrafts({.chosen = chosen, ...}, stream);
//
// Let d be the draft that follows a position. p is the sequence's distribution at that position,
// after temperature, top_k, top_p and min_p. q is the distribution that d was sampled from: the
// drafter's logits after the same parameters, or q(d) = 1 if there are no such logits. Then
//
//   chosen = d                      with probability min(1, p(d) / q(d))
//   chosen = x, never d             otherwise, sampled from max(0, p(x) - q(x))
//
// `chosen` therefore has distribution p for any q, provided that d is independent of the random
// numbers that are drawn here (Leviathan, Kalman and Matias, "Fast inference from transformers via
// speculative decoding", 2023). As in other steps, verification accepts d if it equals `chosen`.
// Positions after a rejected draft do not count.
//
// Random numbers come from Philox(seed, token index), as in Sample(), but with a different second
// counter word: 1 for the token, 2 for the acceptance (Sample() uses 0). Drafts may be sampled with
// the random numbers of Sample(), because these have no other use at positions with drafts.
//
// `chosen` does not change for greedy rows, for positions without a draft or with a draft outside
// the vocabulary, for positions for which Sample() returned no token, and if p - q is nowhere large
// enough to be sampled from.
//
// The host and device forms return the same tokens: masses are integers, and a probability is the
// float64 quotient of two masses.
//
// Thread safety: none; one caller at a time for the same arrays. On a GPU: one launch, which may be
// captured. Does not allocate on the device. Cost: about two rows of Sample() per position.

#ifndef REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_H_
#define REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/reject_drafts_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument naming the field.
absl::Status CheckRejectDrafts(const RejectDraftsArgs& args);

// Runs on the CPU, over host memory. REQUIRES: CheckRejectDrafts(args) is OK.
void RejectDraftsOnHost(const RejectDraftsArgs& args);

// Enqueues the same work as RejectDraftsOnHost(), over device memory. Errors: as
// CheckRejectDrafts(); Internal if CUDA rejects the launch. Only in builds with CUDA (target
// reject_drafts_cuda).
absl::Status LaunchRejectDrafts(const RejectDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_H_
