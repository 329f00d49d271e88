// Collectives between processes, by LibTorch's process groups.
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
  // For all ranks to come, and for each collective of host tensors.
  absl::Duration timeout = absl::Seconds(60);
  // After a failure: how long the other ranks may take to see it, too, before they count as its
  // cause.
  absl::Duration grace = absl::Seconds(2);
  // What must be equal on all ranks, such as a fingerprint of model and options.
  std::string config = {};
  // GPUs: which sums go through symmetric memory, where dtype and size allow it; larger ones go
  // through NCCL. max_symmetric_bytes 0: all do.
  AllReduceLimits limits = {};
};

// Joins the ranks; every rank calls it, and has `device` for its tensors. A world of one is
// OneRank().
//
//   InvalidArgument     place or device is none; another world size; a rank that came twice
//   FailedPrecondition  a rank has another config
//   Unavailable         the port of the store is in use, or the store has gone
//   DeadlineExceeded    ranks, named, did not come in time
//   Unimplemented       a build without process groups: LibTorch has none, or no gloo headers
//
// All of them are on all ranks that have come. Call it before graphs are captured: it runs
// collectives. From then on the process ignores SIGPIPE, unless it has a handler: gloo may write to
// a rank that has ended.
absl::StatusOr<std::unique_ptr<Collectives>> ConnectRanks(const RankPlace& place, at::Device device,
                                                          const ConnectOptions& options = {});

// Joins the ranks and the groups of their grid, of which each rank is in three. Every rank calls it with
// the same context_ranks. All of the groups fail together: a rank that has ended or hangs is an error
// of every group on every rank. `limits` are those of the groups that divide the model; on GPUs, sums
// over all ranks go through NCCL.
//
// Errors: as ConnectRanks(); InvalidArgument for context_ranks that do not divide the world;
// FailedPrecondition for those of another rank that differ.
absl::StatusOr<std::unique_ptr<RankGrid>> ConnectGrid(const RankPlace& place, at::Device device,
                                                      int context_ranks,
                                                      const ConnectOptions& options = {});

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_PROCESS_GROUP_H_
