// What every form of Collectives has to do, checked by each rank against plain sums. For the tests
// on CPUs and on GPUs: a rank connects, and hands its collectives to these functions.

#ifndef REPRISE_DISTRIBUTED_TESTING_COLLECTIVES_SUITE_H_
#define REPRISE_DISTRIBUTED_TESTING_COLLECTIVES_SUITE_H_

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"

namespace reprise {

// Every collective over all dtypes, odd sizes and roots. Adds failures to the test of this process.
absl::Status ExpectPlainResults(Collectives& ranks, at::Device device);

// Random float32, bfloat16 and float16: the same bits on all ranks, and near the sum in float64.
absl::Status ExpectEqualBitsOnAllRanks(Collectives& ranks, at::Device device);

// A refused call sends nothing: the group goes on.
absl::Status ExpectRefusalsToChangeNothing(Collectives& ranks, at::Device device);

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_COLLECTIVES_SUITE_H_
