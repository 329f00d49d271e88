// The KV read on the CPU: see cache/read_kv.h for what it does. Callers use ReadKv().

#ifndef CACHE_READ_KV_CPU_H_
#define CACHE_READ_KV_CPU_H_

#include "cache/read_kv_params.h"

namespace reprise {

// All pointers are the host's. Every dtype; float64 is exact only from a float64 cache.
void ReadKvOnCpu(const ReadKvParams& params);

}  // namespace reprise

#endif  // CACHE_READ_KV_CPU_H_
