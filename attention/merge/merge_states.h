// Merges partial results of attention over disjoint keys into the result over all of them: those of
// context-parallel ranks, of context and new tokens, of a shared prefix and its suffixes.
//
//   Z_i = exp(lse_i)     out = sum_i Z_i out_i / Z     lse = log Z     Z = sum_i Z_i [+ exp(sink)]
//
//   args.part_out[rank] = ...; args.part_lse[rank] = ...; args.num_parts = world;
//   REPRISE_RETURN_IF_ERROR(MergeStates(args));   // or LaunchMergeStates(args, stream)
//
// A part with lse = -inf has no key: its out may hold anything, NaN too. If no part has a key, out
// = 0 and lse = -inf, with or without sinks. Sinks count once: either all parts are computed
// without sinks, or one part is computed with sinks and none is given here.
//
// Parts and out are float32, float16 or bfloat16, each with its own dtype; sums are float32. out
// and lse may each be one of the parts; otherwise nothing may overlap.
//
// lse are natural logarithms, as everywhere in this toolkit. ConvertLse() converts them from and to
// the forms of other systems: base 2, and [heads, tokens] instead of [tokens, heads].
//
//   // FlashInfer's (base 2, [tokens, heads]) into ours (natural):
//   ConvertLse({.from = theirs, .from_base = LogBase::kTwo, .to = ours, .num_tokens = 5, ...});
//
// Thread safety: const data except for what is written. Cost: linear in bytes; no allocation.

#ifndef REPRISE_ATTENTION_MERGE_MERGE_STATES_H_
#define REPRISE_ATTENTION_MERGE_MERGE_STATES_H_

#include "absl/status/status.h"
#include "reprise/attention/merge/merge_states_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes, dtypes and the presence of arrays. Errors: InvalidArgument for no parts or too
// many, a missing address, a negative size; Unimplemented for another dtype, naming the supported
// ones.
absl::Status CheckMergeStates(const MergeStatesArgs& args);

// Does the same as the device form, over host memory. REQUIRES: CheckMergeStates(args) is OK.
void MergeStatesOnHost(const MergeStatesArgs& args);

// Calls CheckMergeStates() and MergeStatesOnHost().
absl::Status MergeStates(const MergeStatesArgs& args);

// Does the same over device memory: one launch, or none without tokens; no synchronisation, no
// allocation, may be captured. Errors: as from CheckMergeStates(), before any call of CUDA;
// Internal if CUDA refuses the launch. Only in builds with CUDA (target merge_states_cuda).
absl::Status LaunchMergeStates(const MergeStatesArgs& args, CUstream_st* stream);

// The same four forms of the conversion. Errors: InvalidArgument for a negative size or a missing
// address. -inf, for a query without keys, stays -inf.
absl::Status CheckConvertLse(const ConvertLseArgs& args);
void ConvertLseOnHost(const ConvertLseArgs& args);
absl::Status ConvertLse(const ConvertLseArgs& args);
absl::Status LaunchConvertLse(const ConvertLseArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_MERGE_MERGE_STATES_H_
