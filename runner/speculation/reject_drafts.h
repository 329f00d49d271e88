// Whether drafts are accepted by rejection sampling (DraftAcceptance::kRejection), and the token of a
// place whose draft is not. Between Sample() and the verification:
//
//   Sample({.logits = logits, ..., .sample_offset = arrays.sample_offset, .out = chosen});
//   LaunchRejectDrafts({.logits = logits, ..., .chosen = chosen}, stream);
//   LaunchAcceptDrafts({.chosen = chosen, ...}, stream);
//
// Of a place that a draft d follows, p is the sequence's distribution there, as temperature, top_k,
// top_p and min_p leave it, and q that of d: of the logits that d was drawn from, by the same
// parameters, or, if there are none, 1 for d. Then
//
//   chosen = d                      with probability min(1, p(d) / q(d))
//   chosen = x, never d             else, drawn from max(0, p(x) - q(x))
//
// So `chosen` has the distribution p, whatever q is, as long as d does not depend on the numbers that
// are drawn here (Leviathan, Kalman and Matias, "Fast inference from transformers via speculative
// decoding", 2023). Verification accepts d if it is `chosen`, as ever. A place after a draft that is
// rejected does not count.
//
// Numbers come from Philox with the sequence's seed and the token's index, as those of Sample(), with
// another second counter word: 1 for the token, 2 for the acceptance (Sample() has 0). Drafts may be
// drawn with the numbers of Sample(), which are not used at places with drafts otherwise.
//
// Unchanged are places of greedy rows, without a draft, with one outside the vocabulary, and those
// that Sample() found no token for.
//
// Host and device form give the same tokens: masses are integers, probabilities are quotients of two
// of them in float64.
//
// Thread safety: none; one caller at a time for the same arrays. On a GPU one launch, which may be
// captured. No allocation on the device. Cost: that of two rows of Sample() for each place.

#ifndef REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_H_
#define REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_H_

#include "absl/status/status.h"
#include "reprise/runner/speculation/reject_drafts_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument naming the field.
absl::Status CheckRejectDrafts(const RejectDraftsArgs& args);

// Over host memory. REQUIRES: CheckRejectDrafts(args) is OK.
void RejectDraftsOnHost(const RejectDraftsArgs& args);

// The same over device memory. Errors: those of the check; Internal if CUDA refuses the launch.
// Only in builds with CUDA (target reject_drafts_cuda).
absl::Status LaunchRejectDrafts(const RejectDraftsArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SPECULATION_REJECT_DRAFTS_H_
