#include "reprise/base/parallel/parallel_for.h"

#include <ATen/Parallel.h>
#include <c10/util/ParallelGuard.h>

#include <algorithm>
#include <atomic>
#include <exception>

#if AT_PARALLEL_OPENMP
// LibTorch's OpenMP library is libgomp. These are the calls that g++ generates for "#pragma omp
// parallel" (https://gcc.gnu.org/onlinedocs/libgomp/Implementing-PARALLEL-construct.html).
// GOMP_parallel exists since GCC 4.9. The zeros request the number of threads set by
// at::set_num_threads(), and no flags.
extern "C" {
void GOMP_parallel(void (*share)(void*), void* data, unsigned num_threads, unsigned flags);
int omp_get_num_threads();
int omp_get_thread_num();
}
#endif

namespace reprise {

#if AT_PARALLEL_OPENMP

namespace {

struct Loop {
  int64_t begin;
  int64_t end;
  int64_t grain;
  absl::FunctionRef<void(int64_t, int64_t)> body;
  std::atomic_flag has_failed = ATOMIC_FLAG_INIT;
  std::exception_ptr error = nullptr;
};

// Runs one thread's range. Exceptions must not reach libgomp.
void RunShare(void* data) {
  Loop& loop = *static_cast<Loop*>(data);
  const int64_t size = loop.end - loop.begin;
  int64_t num_shares = omp_get_num_threads();
  if (loop.grain > 0) num_shares = std::min(num_shares, at::divup(size, loop.grain));
  const int thread = omp_get_thread_num();
  const int64_t share = at::divup(size, num_shares);
  const int64_t first = loop.begin + thread * share;
  if (first >= loop.end) return;
  try {
    const at::internal::ThreadIdGuard thread_id(thread);
    const c10::ParallelGuard in_parallel_region(true);
    loop.body(first, std::min(loop.end, first + share));
  } catch (...) {
    if (!loop.has_failed.test_and_set()) loop.error = std::current_exception();
  }
}

}  // namespace

void ParallelFor(int64_t begin, int64_t end, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t)> body) {
  if (begin >= end) return;
  at::internal::lazy_init_num_threads();
  const int64_t size = end - begin;
  if (size == 1 || size <= grain || at::in_parallel_region() || at::get_num_threads() == 1) {
    const at::internal::ThreadIdGuard thread_id(0);
    const c10::ParallelGuard in_parallel_region(true);
    body(begin, end);
    return;
  }
  Loop loop = {.begin = begin, .end = end, .grain = grain, .body = body};
  GOMP_parallel(RunShare, &loop, 0, 0);
  if (loop.error) std::rethrow_exception(loop.error);
}

#else

void ParallelFor(int64_t begin, int64_t end, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t)> body) {
  at::parallel_for(begin, end, grain, body);
}

#endif

}  // namespace reprise
