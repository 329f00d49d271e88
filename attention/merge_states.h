// Merges partial results of attention over disjoint keys into the result over all of them: shares
// of context-parallel ranks, context and new tokens, a shared prefix and its suffixes. D3, D4, D14.
//
//   Z_i = exp(lse_i)     out = sum_i Z_i out_i / Z     lse = log Z     Z = sum_i Z_i [+ exp(sink)]
//
//   params.part_out[rank] = ...; params.part_lse[rank] = ...; params.num_parts = world;
//   REPRISE_RETURN_IF_ERROR(MergeStates(params));
//   // or LaunchMergeStates(params, stream), attention/merge_states_kernel.h
//
// A part with lse = -inf has no key: its out may hold anything, NaN too. Where no part has one,
// out = 0 and lse = -inf, sinks or not. Sinks count once: parts are computed without them, or one
// part with them, and then none is given here.
//
// Parts and out are float32, float16 or bfloat16, each of its own dtype; sums are float32. Natural
// logarithms: ConvertLse() (attention/lse_format.h) makes them of others. out may be one of the
// parts, and so may lse; else nothing may overlap.
//
// Thread safety: const data but for out and lse. Cost: bytes; no allocation.

#ifndef ATTENTION_MERGE_STATES_H_
#define ATTENTION_MERGE_STATES_H_

#include "absl/status/status.h"
#include "attention/merge_states_params.h"

namespace reprise {

// Errors: InvalidArgument for no parts or too many, a missing address, a negative size;
// Unimplemented for another dtype, naming those that are.
absl::Status CheckMergeStates(const MergeStatesParams& params);

// Over host memory. Errors: as CheckMergeStates(), before anything is written.
absl::Status MergeStates(const MergeStatesParams& params);

}  // namespace reprise

#endif  // ATTENTION_MERGE_STATES_H_
