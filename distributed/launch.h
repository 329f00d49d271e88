// How processes become ranks: started by torchrun, Slurm or MPI, or forked here.
//
//   REPRISE_ASSIGN_OR_RETURN(RankPlace place, RanksFromEnvironment());    // a launcher started N
//   absl::Status status = RunRanks(2, [](const RankPlace& place) {...});  // or this process does
//
// ConnectRanks() (distributed/process_group.h) then joins them. No LibTorch here.

#ifndef REPRISE_DISTRIBUTED_LAUNCH_H_
#define REPRISE_DISTRIBUTED_LAUNCH_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "reprise/distributed/ranks.h"

namespace reprise {

// The value of a variable, or nullopt.
using Variables = absl::FunctionRef<std::optional<std::string>(const std::string& name)>;

// The place that a launcher has given to this process by environment variables:
//
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; any launcher that sets these
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
//   PMI        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID (MPICH, Intel MPI, srun --mpi=pmi2)
//   Slurm      SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, in a step of srun
//
// The first of these that is there counts; none is a world of one. Ranks meet at
// MASTER_ADDR:MASTER_PORT. Without MASTER_ADDR: the first node of Slurm's list, or this machine if
// MPI says that all ranks are on it. Without MASTER_PORT: 29500, and under Slurm a port that
// depends on the job. InvalidArgument names the variable that is missing or no such number.
absl::StatusOr<RankPlace> RanksFromEnvironment();
absl::StatusOr<RankPlace> RanksFromVariables(Variables variables);

struct RunRanksOptions {
  // After the first failure of a rank: how long the others may take to notice and return before
  // they are killed.
  absl::Duration grace = absl::Seconds(10);
};

// Forks `world` processes that run `body` as ranks 0 to world - 1 of this machine, and waits for
// all of them. They meet in a file of a temporary folder, which is removed. Standard input and
// output are shared.
//
// Returns OK if all bodies did. Else the first failure in time: the rank, and its Status, exit or
// signal; the other ranks have the grace, and are then killed. No child is left when this returns
// or when this process ends.
//
// Call it before anything has started threads or touched CUDA, which a fork does not carry over:
// FailedPrecondition if this process has more than one thread. Not thread-safe.
absl::Status RunRanks(int world, absl::FunctionRef<absl::Status(const RankPlace&)> body,
                      const RunRanksOptions& options = {});

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_LAUNCH_H_
