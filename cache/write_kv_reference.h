// The KV write, element by element: what every other form of it is compared with.

#ifndef CACHE_WRITE_KV_REFERENCE_H_
#define CACHE_WRITE_KV_REFERENCE_H_

#include "cache/write_kv_params.h"

namespace reprise {

// As cache/write_kv.h says, on host memory, for every dtype. Slots outside the cache are not
// written.
void WriteKvReference(const WriteKvParams& params);

}  // namespace reprise

#endif  // CACHE_WRITE_KV_REFERENCE_H_
