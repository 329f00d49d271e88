// Tests that every implementation of Collectives must pass. Each rank compares the results with
// plain sums. Used on CPUs and GPUs: a rank connects and passes its Collectives to these functions.

#ifndef REPRISE_DISTRIBUTED_TESTING_COLLECTIVES_SUITE_H_
#define REPRISE_DISTRIBUTED_TESTING_COLLECTIVES_SUITE_H_

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"

namespace reprise {

// Runs AllReduce, ReduceScatter, AllGather and Broadcast over many dtypes, odd sizes and roots.
// Adds failures to the test of this process.
absl::Status ExpectPlainResults(Collectives& ranks, at::Device device);

// Sums random float32, bfloat16 and float16 values. Expects results that are bitwise identical on
// all ranks and close to the float64 sum.
absl::Status ExpectEqualBitsOnAllRanks(Collectives& ranks, at::Device device);

// Expects that calls with invalid arguments send nothing, and that later calls succeed.
absl::Status ExpectRefusalsToChangeNothing(Collectives& ranks, at::Device device);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_COLLECTIVES_SUITE_H_
