// The KV write, element by element. Tests compare every other form of it with this one.

#ifndef REPRISE_CACHE_TESTING_WRITE_KV_REFERENCE_H_
#define REPRISE_CACHE_TESTING_WRITE_KV_REFERENCE_H_

#include "reprise/cache/ops/write_kv_args.h"

namespace reprise {

// Like the function in cache/ops/write_kv.h, on host memory, for every dtype. Slots outside the
// cache are not written.
void WriteKvReference(const WriteKvArgs& args);

}  // namespace reprise

#endif  // REPRISE_CACHE_TESTING_WRITE_KV_REFERENCE_H_
