// Sample() for logits of which each rank has a shard, a range of the vocabulary. Ranks exchange a
// few words per row instead of the logits.
//
//   LaunchShardTop(args, stream);       // args.top, unless all rows are greedy (num_top 0)
//   ... all ranks' `top` are gathered into all_tops ...
//   LaunchShardChoice(args, stream);    // args.choices
//   ... all ranks' `choices` are gathered into all_choices ...
//   LaunchShardTokens(args, stream);    // tokens, and the slots advance
//
// The tokens are identical to those of Sample() over all logits, including equal logits and NaN.
// Each shard reports its k largest keys and the number of its logits that equal the k-th key.
// Together they contain the k largest keys of the row and all keys equal to the k-th. Each rank
// derives the row's largest logit and the threshold of top_k and top_p from them, and then draws
// from its shard as Sample() would. The best of these draws is the row's token. REQUIRES:
// ShardsServe() allows the parameters.
//
// runner/ranks/shard_sampler.h makes these calls over ranks.
//
// Thread safety: none; one caller at a time for the same slots. The device form uses at most one
// launch for each of the three calls, does not synchronise or allocate, and may be captured. Cost:
// that of Sample() for a vocabulary of shard_size, without top_p.

#ifndef REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_H_
#define REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_H_

#include "absl/status/status.h"
#include "reprise/runner/sampling/shard_sampling_args.h"

namespace reprise {

// Checks dtype, sizes, strides and the presence of arrays, not their content. Errors:
// InvalidArgument, naming the field.
absl::Status CheckShardSampling(const ShardSamplingArgs& args);

// REQUIRES: CheckShardSampling() is OK; ShardsServe() allows the parameters of the sampled rows; no
// row needs more than num_top keys. They may allocate.
void ShardTopOnHost(const ShardSamplingArgs& args);
void ShardChoiceOnHost(const ShardSamplingArgs& args);
void ShardTokensOnHost(const ShardSamplingArgs& args);

// The device forms; `out` may be mapped host memory. If num_top is 0, all rows are sampled
// greedily. Otherwise, a row whose parameters need more than num_top keys is sampled as if top_k
// were num_top. Errors: those of CheckShardSampling(), before any CUDA call; Internal if the CUDA
// launch fails. Only in builds with CUDA (target shard_sampling_cuda).
absl::Status LaunchShardTop(const ShardSamplingArgs& args, CUstream_st* stream);
absl::Status LaunchShardChoice(const ShardSamplingArgs& args, CUstream_st* stream);
absl::Status LaunchShardTokens(const ShardSamplingArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_RUNNER_SAMPLING_SHARD_SAMPLING_H_
