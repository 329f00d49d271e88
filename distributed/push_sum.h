// A sum over GPUs in which each rank writes its summands into the memory of the others, in one
// kernel that waits for nothing else: the quickest for small tensors. Private to the folder.
//
// A message is lines of 16 bytes: 4 bytes of data, a flag, 4 bytes of data, a flag. Each 8 bytes are
// written and read at once, so a line whose flags are the number of this sum is there, without a
// fence and without a signal that comes behind it. An inbox has two places for the message of each
// rank, which sums take in turn: a rank writes its next but one message when it has the next of its
// peer, who by then has read the one before.
//
// All ranks sum in the order of the ranks, in float32: results are bitwise equal.
//
//   PushSumArgs args = {.data = rows, .num_bytes = 8192, ...};
//   REPRISE_RETURN_IF_ERROR(LaunchPushSum(args, stream));
//
// Thread safety: const data except for what is written.

#ifndef REPRISE_DISTRIBUTED_PUSH_SUM_H_
#define REPRISE_DISTRIBUTED_PUSH_SUM_H_

#include "absl/status/status.h"
#include "reprise/distributed/push_sum_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Enqueues the kernel, which replaces args.data by the sum. All ranks enqueue sums of the same sizes in the same order, one at a time. May
// be captured. REQUIRES: as PushSumArgs says. Errors: Internal if the launch fails. Only in builds with CUDA.
absl::Status LaunchPushSum(const PushSumArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_PUSH_SUM_H_
