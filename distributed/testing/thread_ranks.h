// Runs ranks as threads of one process, for tests that need no processes or sockets.
//
//   const std::vector<absl::Status> results = RunThreadRanks(4, [&](Collectives& collectives) {
//     at::Tensor x = ...;
//     return collectives.AllReduce(x);
//   });
//
// Supports only host tensors. Sums are computed in rank order; 16-bit floats are summed in float32.
// If a rank returns, the group ends: calls that still wait for it return Unavailable. A call that
// waits for a minute returns DeadlineExceeded.

#ifndef REPRISE_DISTRIBUTED_TESTING_THREAD_RANKS_H_
#define REPRISE_DISTRIBUTED_TESTING_THREAD_RANKS_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/rank_grid.h"

namespace reprise {

// Runs `run` on one thread per rank. Returns the results by rank after all threads have returned.
std::vector<absl::Status> RunThreadRanks(int world,
                                         const std::function<absl::Status(Collectives&)>& run);

// Like RunThreadRanks(), for a grid of ranks (distributed/rank_grid.h). If a rank returns, all its
// groups end. REQUIRES: CheckGrid(world, context_ranks).ok().
std::vector<absl::Status> RunThreadGrid(int world, int context_ranks,
                                        const std::function<absl::Status(RankGrid&)>& run);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_THREAD_RANKS_H_
