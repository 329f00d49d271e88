// Runs decode in one process, in processes that it starts, or as one of those that a launcher has
// started.
//
//   decode --ranks 2 ...
//   torchrun --nproc-per-node 2 --no-python decode ...

#ifndef EXAMPLES_DECODE_RANKS_H_
#define EXAMPLES_DECODE_RANKS_H_

#include "absl/status/status.h"
#include "examples/decode/options.h"
#include "examples/decode/run.h"

namespace reprise {

// The command, such as RunDecode(), over options.num_ranks processes, or over the ranks of the
// environment (distributed/launch.h). Only rank 0 writes to the streams. Errors: those of the
// command, RunRanks(), RanksFromEnvironment() and ConnectRanks(); InvalidArgument for --ranks in a
// process that a launcher has started as one of another number.
absl::Status RunDecodeOverRanks(const DecodeOptions& options, const DecodeStreams& streams);

}  // namespace reprise

#endif  // EXAMPLES_DECODE_RANKS_H_
