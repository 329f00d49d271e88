// Collectives between processes, over LibTorch's process groups.
//
//   REPRISE_ASSIGN_OR_RETURN(RankPlace place, RanksFromEnvironment());
//   const at::Device device(at::kCUDA, place.local_rank);
//   REPRISE_ASSIGN_OR_RETURN(auto ranks, ConnectRanks(place, device));
//   REPRISE_RETURN_IF_ERROR(ranks->AllReduce(sums));

#ifndef REPRISE_DISTRIBUTED_PROCESS_GROUP_H_
#define REPRISE_DISTRIBUTED_PROCESS_GROUP_H_

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/all_reduce_choice.h"
#include "reprise/distributed/collectives.h"
#include "reprise/distributed/rank_grid.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

struct ConnectOptions {
  // Time limit of the rendezvous, of every collective on host tensors, and by default of
  // AwaitDevice().
  absl::Duration timeout = absl::Seconds(60);
  // Grace period after a failure: the time that the other ranks have to detect it, too. Ranks that
  // do not report it in time are named as the cause.
  absl::Duration grace = absl::Seconds(2);
  // A text that must be equal on all ranks, such as a fingerprint of model and options.
  std::string config = {};
  // GPUs: the sizes up to which sums go through symmetric memory, if dtype and alignment allow it.
  // Larger sums use NCCL. max_symmetric_bytes 0: all sums use NCCL.
  AllReduceLimits limits = {};
};

// Connects the ranks. Every rank calls it, with the `device` of its tensors. Returns OneRank() for
// a world of one rank.
//
//   InvalidArgument     invalid place or device; a different world size; a rank that joined twice
//   FailedPrecondition  a rank has a different config
//   Unavailable         the port of the store is in use, or the store has ended
//   DeadlineExceeded    ranks did not join in time; the message names them
//   Unimplemented       the build has no process groups: LibTorch lacks them, or gloo headers do
//
// Every rank that took part in the rendezvous returns the error. Call ConnectRanks() before graphs
// are captured, because it runs collectives. With several ranks, the process then ignores SIGPIPE
// unless it has a handler, because gloo may write to a rank that has ended.
absl::StatusOr<std::unique_ptr<Collectives>> ConnectRanks(const RankPlace& place, at::Device device,
                                                          const ConnectOptions& options = {});

// Connects the ranks and the groups of their grid. If both dimensions have several ranks, each rank
// is in three groups. Every rank calls it with the same context_ranks. All groups fail together: a
// rank that has ended or hangs is an error of every group on every rank. `limits` then apply to the
// weights and context groups, and on GPUs sums over all ranks use NCCL.
//
// Errors: as ConnectRanks(). InvalidArgument if context_ranks does not divide the world.
// FailedPrecondition if context_ranks differs between ranks.
absl::StatusOr<std::unique_ptr<RankGrid>> ConnectGrid(const RankPlace& place, at::Device device,
                                                      int context_ranks,
                                                      const ConnectOptions& options = {});

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_PROCESS_GROUP_H_
