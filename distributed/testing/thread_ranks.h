// Ranks as threads of one process, for tests of what ranks do without processes and sockets.
//
//   const std::vector<absl::Status> results = RunThreadRanks(4, [&](Collectives& collectives) {
//     at::Tensor x = ...;
//     return collectives.AllReduce(x);
//   });
//
// Tensors are the host's. Sums go over the ranks in their order: in float32 for 16-bit floats. A
// rank that returns ends the group: calls that still wait for it are Unavailable. A call that waits
// for a minute is DeadlineExceeded.

#ifndef REPRISE_DISTRIBUTED_TESTING_THREAD_RANKS_H_
#define REPRISE_DISTRIBUTED_TESTING_THREAD_RANKS_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/rank_grid.h"

namespace reprise {

// By rank: what `run` has returned on its thread. Returns when all have.
std::vector<absl::Status> RunThreadRanks(int world,
                                         const std::function<absl::Status(Collectives&)>& run);

// The same of a grid of ranks (distributed/rank_grid.h). A rank that returns ends all its groups.
// REQUIRES: CheckGrid(world, context_ranks).ok().
std::vector<absl::Status> RunThreadGrid(int world, int context_ranks,
                                        const std::function<absl::Status(RankGrid&)>& run);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_THREAD_RANKS_H_
