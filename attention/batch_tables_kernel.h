// Block tables of a batch's own rows on the GPU: padded, packed, cumulative key lengths, and from
// packed to padded. What attention/batch_tables.h and cache/block_table_formats.h do on the host.
// Torch-free.
//
//   DeviceTables out{.block_indptr = indptr, .block_indices = indices, .max_indices = 4096,
//                    .last_block_len = last, .num_bad_rows = bad};
//   LaunchGatherTables(batch, table, {}, out, stream);
//
// Without table_row in the batch, row r is that of table row r: so a padded table is packed.
//
// Everything read on the device is bounds-checked. A bad row becomes an empty one and is counted:
// one with a table_row outside the table, more keys than the table or the padded output has room
// for, or indices that, after those of the good rows before it, pass max_indices (then no later row
// is served either: shared prefixes can make more indices than the cache has blocks).
//
// No synchronisation, may be captured; the grid depends on num_rows alone. LaunchGatherTables() is
// one kernel, LaunchUnpackTable() a memset and a kernel.

#ifndef ATTENTION_BATCH_TABLES_KERNEL_H_
#define ATTENTION_BATCH_TABLES_KERNEL_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention/batch_builder.h"
#include "attention/batch_table_rows.h"
#include "attention/paged_batch.h"

namespace reprise {

// Device memory; forms that are not wanted are absent.
struct DeviceTables {
  int32_t* entries = nullptr;  // padded: [num_rows, max_blocks]
  int64_t row_stride = 0;
  int max_blocks = 0;
  int32_t* seq_lens = nullptr;       // [num_rows] keys in each row; with entries
  int32_t* block_indptr = nullptr;   // packed: [num_rows + 1]
  int32_t* block_indices = nullptr;  // [max_indices]; with block_indptr
  int max_indices = 0;
  int32_t* last_block_len = nullptr;  // [num_rows]; with block_indptr
  int32_t* key_start_loc = nullptr;   // [num_rows + 1] prefix sums of the keys in each row
  int32_t* num_bad_rows = nullptr;    // [1]; always
};

// `table` has its entries on the device; query_start_loc is read only where `selection` asks for
// it. Errors: cudaErrorInvalidValue for an absent array, or a negative size.
cudaError_t LaunchGatherTables(const PagedBatch& batch, const BlockTableView& table,
                               const TableSelection& selection, const DeviceTables& out,
                               cudaStream_t stream);

struct DevicePackedTable {
  const int32_t* block_indptr = nullptr;    // [num_rows + 1]
  const int32_t* block_indices = nullptr;   // [num_indices]
  const int32_t* last_block_len = nullptr;  // [num_rows]
  int num_rows = 0;
  int num_indices = 0;
};

// Fills entries and seq_lens of `out`. Bad rows: an indptr that descends or passes num_indices, a
// last_block_len out of its range, more blocks than max_blocks, more keys than int32 counts.
cudaError_t LaunchUnpackTable(const DevicePackedTable& packed, int block_size,
                              const DeviceTables& out, cudaStream_t stream);

}  // namespace reprise

#endif  // ATTENTION_BATCH_TABLES_KERNEL_H_
