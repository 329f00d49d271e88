// Merges partial results of attention over disjoint keys into the result over all of them: shares
// of context-parallel ranks, context and new tokens, a shared prefix and its suffixes. D3, D4, D14.
//
//   Z_i = exp(lse_i)     out = sum_i Z_i out_i / Z     lse = log Z     Z = sum_i Z_i [+ exp(sink)]
//
//   params.part_out[rank] = ...; params.part_lse[rank] = ...; params.num_parts = world;
//   REPRISE_RETURN_IF_ERROR(MergeStates(params));
//   // or LaunchMergeStates(params, stream), attention/merge/merge_states_kernel.h
//
// A part with lse = -inf has no key: its out may hold anything, NaN too. If no part has a key, out
// = 0 and lse = -inf, with or without sinks. Sinks count once: either all parts are computed
// without sinks, or one part is computed with sinks and none is given here.
//
// Parts and out are float32, float16 or bfloat16, each with its own dtype; sums are float32. lse
// are natural logarithms; ConvertLse() (attention/merge/lse_format.h) converts others. out and lse
// may each be one of the parts; otherwise nothing may overlap.
//
// Thread safety: const data except for out and lse. Cost: linear in bytes; no allocation.

#ifndef ATTENTION_MERGE_MERGE_STATES_H_
#define ATTENTION_MERGE_MERGE_STATES_H_

#include "absl/status/status.h"
#include "attention/merge/merge_states_params.h"

namespace reprise {

// Errors: InvalidArgument for no parts or too many, a missing address, a negative size;
// Unimplemented for another dtype, naming the supported ones.
absl::Status CheckMergeStates(const MergeStatesParams& params);

// Runs over host memory. Errors: as CheckMergeStates(), before anything is written.
absl::Status MergeStates(const MergeStatesParams& params);

}  // namespace reprise

#endif  // ATTENTION_MERGE_MERGE_STATES_H_
