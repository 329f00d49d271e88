// Sample() over logits of which each rank has a shard, a range of the vocabulary: what ranks tell each
// other is a few words a row instead of the logits.
//
//   LaunchShardTop(args, stream);       // args.top, unless all rows are greedy (num_top 0)
//   ... all ranks' `top` are gathered into all_tops ...
//   LaunchShardChoice(args, stream);    // args.choices
//   ... all ranks' `choices` are gathered into all_choices ...
//   LaunchShardTokens(args, stream);    // tokens, and the slots advance
//
// The tokens are those of Sample() over all logits, to the bit, equal logits and NaN included: the
// k largest keys of each shard, with the number of logits that equal the k-th, contain the k largest
// of all and what equals those. From them each rank finds the largest logit and the threshold of top_k
// and top_p, so that it draws in its shard as it would among all; the best of these draws is the
// row's. For parameters that ShardsServe() allows.
//
// runner/ranks/shard_sampler.h makes these calls over ranks.
//
// Thread safety: none; one caller at a time for the same slots. The device form takes a launch for
// each of the three, does not synchronise or allocate, and may be captured. Cost: as Sample() for a
// vocabulary of shard_size, without top_p.

#ifndef REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_H_
#define REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/shard_sampling_args.h"

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument naming the field.
absl::Status CheckShardSampling(const ShardSamplingArgs& args);

// REQUIRES: the check is OK, and ShardsServe() the parameters of the sampled rows, none of which
// needs more than num_top. They allocate.
void ShardTopOnHost(const ShardSamplingArgs& args);
void ShardChoiceOnHost(const ShardSamplingArgs& args);
void ShardTokensOnHost(const ShardSamplingArgs& args);

// The same over device memory; `out` may be mapped host memory. A row whose parameters need more than
// num_top is served as if top_k were num_top. Errors: those of the check, before any call of CUDA;
// Internal if CUDA refuses the launch. Only in builds with CUDA (target shard_sampling_cuda).
absl::Status LaunchShardTop(const ShardSamplingArgs& args, CUstream_st* stream);
absl::Status LaunchShardChoice(const ShardSamplingArgs& args, CUstream_st* stream);
absl::Status LaunchShardTokens(const ShardSamplingArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_H_
