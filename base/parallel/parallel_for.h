// Loops over LibTorch's threads, for sources that any compiler may compile.
#ifndef REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_
#define REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_

#include <cstdint>

#include "absl/functional/function_ref.h"

namespace reprise {

// Divides [begin, end) into consecutive shares, at most one for each of at::get_num_threads() threads, and calls
// `body(first, last)` for each of them, side by side. Returns when all calls have returned. Every share but the last has at
// least `grain` (0 or more) indices. An empty range makes no call; within a parallel region, and where one share
// is enough, the calling thread makes the one call.
//
// The same division and the same threads as at::parallel_for() of a LibTorch with OpenMP, which is parallel only in
// sources that are compiled with g++'s -fopenmp: clang's calls another library, with threads of its own.
//
// An exception of `body` is rethrown when all calls have ended; of several exceptions, one. Any thread may call it.
// Allocates no memory in the steady state.
void ParallelFor(int64_t begin, int64_t end, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t)> body);

}  // namespace reprise

#endif  // REPRISE_BASE_PARALLEL_PARALLEL_FOR_H_
