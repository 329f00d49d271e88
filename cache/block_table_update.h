// One new entry of a block table, as the host tells it to whoever owns the table.

#ifndef CACHE_BLOCK_TABLE_UPDATE_H_
#define CACHE_BLOCK_TABLE_UPDATE_H_

#include <cstdint>

namespace reprise {

// Plain integers, 16 bytes: the struct travels through mapped memory to the kernel that applies it.
struct BlockTableUpdate {
  int32_t slot;       // table row
  int32_t column;     // which block of the sequence: position / block_size
  int32_t block;      // 0, the null block, clears the entry
  int32_t group = 0;  // whose table: cache/kv_group.h
};

}  // namespace reprise

#endif  // CACHE_BLOCK_TABLE_UPDATE_H_
