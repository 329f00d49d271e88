// The KV write, element by element. Tests compare all other implementations with this one.

#ifndef REPRISE_CACHE_TESTING_WRITE_KV_REFERENCE_H_
#define REPRISE_CACHE_TESTING_WRITE_KV_REFERENCE_H_

#include "reprise/cache/ops/write_kv_args.h"

namespace reprise {

// Like the function in cache/ops/write_kv.h, on host memory, for every dtype. Does not write slots
// outside the cache.
void WriteKvReference(const WriteKvArgs& args);

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_WRITE_KV_REFERENCE_H_
