// The KV write on the CPU: see cache/write_kv.h for what it does. Callers use WriteKv().

#ifndef CACHE_WRITE_KV_CPU_H_
#define CACHE_WRITE_KV_CPU_H_

#include "absl/status/status.h"
#include "cache/write_kv_params.h"

namespace reprise {

// All pointers are the host's. Errors: InvalidArgument naming the first slot that is neither -1 nor
// within the cache; nothing has been written. Cost: one pass over the slots, then that of the bytes
// moved; threads of LibTorch's pool from about 256 KB on.
absl::Status WriteKvOnCpu(const WriteKvParams& params);

}  // namespace reprise

#endif  // CACHE_WRITE_KV_CPU_H_
