// Turns processes into ranks: processes started by torchrun, Slurm or MPI, or processes forked
// here.
//
//   REPRISE_ASSIGN_OR_RETURN(RankPlace place, RanksFromEnvironment());    // a launcher started N
//   absl::Status status = RunRanks(2, [](const RankPlace& place) {...});  // or this process does
//
// ConnectRanks() (distributed/process_group.h) then connects the ranks. Does not depend on
// LibTorch.

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

// Returns the value of an environment variable, or nullopt if it is not set.
using Variables = absl::FunctionRef<std::optional<std::string>(const std::string& name)>;

// Returns the rank and rendezvous address of this process, which a launcher passes in environment
// variables:
//
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT; any launcher that sets these
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
//   PMI        PMI_RANK, PMI_SIZE, MPI_LOCALRANKID (MPICH, Intel MPI, srun --mpi=pmi2)
//   Slurm      SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, in a step of srun
//
// The first launcher in this list whose variables are set is used. Without a launcher, the world is
// one rank. The rendezvous address is MASTER_ADDR:MASTER_PORT. Without MASTER_ADDR, it is the first
// node of Slurm's list, or this machine if the launcher reports that all ranks are on it. Without
// MASTER_PORT, it is 29500, or under Slurm a port derived from the job and step numbers. Errors:
// InvalidArgument names a variable that is missing or is not a valid number.
absl::StatusOr<RankPlace> RanksFromEnvironment();
absl::StatusOr<RankPlace> RanksFromVariables(Variables variables);

struct RunRanksOptions {
  // Time that the other ranks have to detect the first failure and return. Then they are killed.
  absl::Duration grace = absl::Seconds(10);
};

// Forks `world` processes that run `body` as ranks 0 to world - 1 of this machine, and waits for
// all of them. Their rendezvous is a file in a temporary folder, which is removed at the end. They
// share standard input and output.
//
// Returns OK if `body` returns OK on every rank. Otherwise returns the failure that occurred first:
// the rank, and its Status, exit status or signal. The other ranks are killed after the grace
// period. No child process is left when RunRanks() returns or when this process ends.
//
// Call RunRanks() before anything starts threads or uses CUDA, because a fork does not copy them.
// FailedPrecondition if this process has more than one thread. Not thread-safe.
absl::Status RunRanks(int world, absl::FunctionRef<absl::Status(const RankPlace&)> body,
                      const RunRanksOptions& options = {});

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_LAUNCH_H_
