// Merges partial attention results over disjoint keys into the result over all keys. For example:
// results of context-parallel ranks, of context and new tokens, or of a shared prefix and its
// suffixes.
//
//   Z_i = exp(lse_i)     out = sum_i Z_i out_i / Z     lse = log Z     Z = sum_i Z_i [+ exp(sink)]
//
//   args.part_out[rank] = ...; args.part_lse[rank] = ...; args.num_parts = world;
//   REPRISE_RETURN_IF_ERROR(MergeStates(args));   // or LaunchMergeStates(args, stream)
//
// A part with lse = -inf has no keys; its out may hold anything, including NaN. If no part has
// keys, out = 0 and lse = -inf, with or without sinks. Sinks count once: either compute all parts
// without sinks, or compute one part with sinks and pass no sinks here.
//
// Parts and out are float32, float16 or bfloat16; out may differ in dtype from the parts. Sums are
// float32. out and lse may each be one of the parts, with the same dtype and strides; other
// overlaps are not allowed.
//
// lse is a natural logarithm, as everywhere in this toolkit. ConvertLse() converts it from and to
// the formats of other systems: base 2, and [heads, tokens] instead of [tokens, heads].
//
//   // From FlashInfer's format (base 2, [tokens, heads]) to this toolkit's (natural):
//   ConvertLse({.from = theirs, .from_base = LogBase::kTwo, .to = ours, .num_tokens = 5, ...});
//
// Thread safety: const data except for the outputs. Cost: linear in bytes; does not allocate.

#ifndef REPRISE_ATTENTION_MERGE_MERGE_STATES_H_
#define REPRISE_ATTENTION_MERGE_MERGE_STATES_H_

#include "absl/status/status.h"
#include "reprise/attention/merge/merge_states_args.h"

struct CUstream_st;

namespace reprise {

// Checks sizes, dtypes and the presence of arrays. Errors: InvalidArgument for no parts or more
// than kMaxMergeParts, for a missing address, for a negative num_tokens, and for a num_heads or
// head_dim below 1. Unimplemented for an unsupported dtype; the message lists the supported ones.
absl::Status CheckMergeStates(const MergeStatesArgs& args);

// The host form: like LaunchMergeStates(), over host memory. REQUIRES: CheckMergeStates(args) is
// OK.
void MergeStatesOnHost(const MergeStatesArgs& args);

// Calls CheckMergeStates(), then MergeStatesOnHost().
absl::Status MergeStates(const MergeStatesArgs& args);

// The device form. One launch, or none without tokens; does not synchronise or allocate; may be
// captured. Errors: as from CheckMergeStates(); then CUDA has not been called. Internal if the
// launch fails. Only in builds with CUDA (target merge_states_cuda).
absl::Status LaunchMergeStates(const MergeStatesArgs& args, CUstream_st* stream);

// The same four forms for the conversion. Errors: InvalidArgument for a negative size or a missing
// address. -inf, the lse of a query without keys, stays -inf.
absl::Status CheckConvertLse(const ConvertLseArgs& args);
void ConvertLseOnHost(const ConvertLseArgs& args);
absl::Status ConvertLse(const ConvertLseArgs& args);
absl::Status LaunchConvertLse(const ConvertLseArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_ATTENTION_MERGE_MERGE_STATES_H_
