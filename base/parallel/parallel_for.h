// Parallel loops on LibTorch's threads, compiled by any compiler.
#ifndef REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_
#define REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace reprise {

// Divides [begin, end) into consecutive shares, at most at::get_num_threads() of them, and calls `body(first, last)` for
// each share in parallel. Returns when all calls have returned. Every share but the last has at least `grain` indices
// (grain >= 0). An empty range makes no call. Within a parallel region, and if one share is enough, the calling thread
// makes a single call.
//
// With LibTorch's usual OpenMP backend, shares and threads are the same as in at::parallel_for(). That function is
// parallel only in sources compiled by g++ with -fopenmp: clang's OpenMP uses a different library and a second set of
// threads.
//
// If `body` throws, one of the exceptions is rethrown after all calls have ended. Thread safety: any thread may call it.
// Allocates no memory in the steady state.
void ParallelFor(int64_t begin, int64_t end, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t)> body);

}  // namespace reprise

#endif  // REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_
