// Where a slot stands in a cache, for kernels that write by slot mapping.
//
//   const SlotPlaces places(kv);                           // on the host, into the parameters
//   const SlotPlace place = places.Find(slot_mapping[t]);
//   if (place.is_there) data[place.Offset(view)] = ...;    // head 0, dim 0

#ifndef CACHE_SLOT_PLACE_CUH_
#define CACHE_SLOT_PLACE_CUH_

#include <cstdint>

#include "base/divisor.h"
#include "cache/kv_layer.h"

namespace reprise {

struct SlotPlace {
  int64_t block;
  int offset;     // in the block
  bool is_there;  // within the cache: -1 and slots past its end are not

  // Of the first head and dim, in elements.
  __host__ __device__ int64_t Offset(const KvView& view) const {
    return block * view.block_stride + offset * view.token_stride;
  }
};

class SlotPlaces {
 public:
  SlotPlaces() = default;
  explicit SlotPlaces(const KvLayer& kv)
      : num_slots_(int64_t{kv.num_blocks} * kv.block_size), block_size_(kv.block_size) {}

  __host__ __device__ SlotPlace Find(int64_t slot) const {
    // Most caches have fewer than 2^31 slots, where a division is three instructions.
    const int64_t block = slot <= INT32_MAX ? block_size_.Divide(static_cast<uint32_t>(slot))
                                            : slot / block_size_.value();
    return {.block = block,
            .offset = static_cast<int>(slot - block * block_size_.value()),
            .is_there = slot >= 0 && slot < num_slots_};
  }

 private:
  int64_t num_slots_ = 0;
  Divisor block_size_;
};

}  // namespace reprise

#endif  // CACHE_SLOT_PLACE_CUH_
