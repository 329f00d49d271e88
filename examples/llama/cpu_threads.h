// How many threads a model's products are worth on the CPU.
//
//   at::set_num_threads(SensibleCpuThreads(weight_bytes, at::get_num_threads()));
//
// A step of decoding reads all weights once, product by product, and its threads meet after each.
// Where a product takes a few microseconds, meeting costs more than sharing gains, and far more on
// a machine that has other things to do.

#ifndef EXAMPLES_LLAMA_CPU_THREADS_H_
#define EXAMPLES_LLAMA_CPU_THREADS_H_

#include <cstdint>

namespace reprise {

// At least 1 and at most `num_available`: one for every 16 MiB of weights, which take a thread
// about a millisecond to read.
int SensibleCpuThreads(int64_t weight_bytes, int num_available);

}  // namespace reprise

#endif  // EXAMPLES_LLAMA_CPU_THREADS_H_
