// A one-shot push all-reduce over GPUs: each rank writes its data into the memory of all other
// ranks, and waits for theirs, in one kernel. The fastest algorithm for small tensors. Private to
// the folder.
//
// A message consists of lines of 16 bytes: 4 bytes of data, a flag, 4 bytes of data, a flag. Each 8
// bytes are written and read atomically. A line is complete if both flags equal the number of this
// sum, so no fence and no separate signal are needed.
//
// An inbox has two slots per sending rank, and consecutive sums alternate between them. A rank
// writes its message of sum n + 2 only after it has received its peer's message of sum n + 1. The
// peer sent that message after it had read the message of sum n, so the slot is free.
//
// All ranks sum in rank order, in float32, so results are bitwise identical on all ranks.
//
//   PushAllReduceArgs args = {.data = rows, .num_bytes = 8192, ...};
//   REPRISE_RETURN_IF_ERROR(LaunchPushAllReduce(args, stream));
//
// Thread safety: calls with different inboxes and states may run concurrently.

#ifndef REPRISE_DISTRIBUTED_PUSH_ALL_REDUCE_H_
#define REPRISE_DISTRIBUTED_PUSH_ALL_REDUCE_H_

#include "absl/status/status.h"
#include "reprise/distributed/push_all_reduce_args.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace reprise {

// Enqueues the kernel, which replaces args.data with the sum. All ranks enqueue sums of the same
// sizes in the same order, one at a time. May be captured. REQUIRES: the conditions in
// PushAllReduceArgs. Errors: Internal if the launch fails. Only in builds with CUDA.
absl::Status LaunchPushAllReduce(const PushAllReduceArgs& args, CUstream_st* stream);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_PUSH_ALL_REDUCE_H_
