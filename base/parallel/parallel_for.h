// Parallel loops on LibTorch's threads, compiled by any compiler.
#ifndef REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_
#define REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace reprise {

// Divides [begin, end) into consecutive ranges of nearly equal size, and calls `body(first, last)`
// for each range in parallel. Returns after all calls have returned. There are at most
// at::get_num_threads() ranges, and at most one per `grain` indices, rounded up (grain >= 0; 0: no
// limit). Makes no call if begin == end.
// Makes a single call on the calling thread within a parallel region, or if one range is enough.
//
// With LibTorch's usual OpenMP backend, ranges and threads are the same as in at::parallel_for().
// That function is parallel only in sources that g++ compiles with -fopenmp, because clang's OpenMP
// uses a different library and a second set of threads.
//
// If `body` throws, rethrows one of the exceptions after all calls have ended. Thread safety: any
// thread may call it. Does not allocate in the steady state.
void ParallelFor(int64_t begin, int64_t end, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t)> body);

}  // namespace reprise

#endif  // REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_
