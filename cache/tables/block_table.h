// Block tables of sequences in host memory: one row per slot, in the format that kernels read
// (cache/tables/block_table_view.h).
//
//   BlockTable table = *BlockTable::Create({.num_slots = 256, .max_blocks = 512});
//   table.mutable_row(SlotId(3))[0] = block;
//   BlockTableView view = table.view(/*block_size=*/16, /*num_blocks=*/1024);
//
// Element (slot, column) is data()[slot * row_stride() + column]. Entries that were never set, or
// were cleared, are the null block.
//
// Thread safety: not thread-safe; one owner. Ownership: the table owns its memory, whose address
// does not change.

#ifndef REPRISE_CACHE_TABLES_BLOCK_TABLE_H_
#define REPRISE_CACHE_TABLES_BLOCK_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "reprise/base/ids.h"
#include "reprise/cache/tables/block_table_update.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

struct BlockTableOptions {
  int num_slots = 0;   // number of rows
  int max_blocks = 0;  // number of columns: the maximum number of blocks of a sequence
  // Number of elements between rows, at least max_blocks. 0: max_blocks.
  int64_t row_stride = 0;
};

class BlockTable {
 public:
  // Errors: InvalidArgument, naming the field.
  static absl::StatusOr<BlockTable> Create(const BlockTableOptions& options);

  BlockTable(BlockTable&&) = default;
  BlockTable& operator=(BlockTable&&) = default;

  int num_slots() const { return num_slots_; }
  int max_blocks() const { return max_blocks_; }
  int64_t row_stride() const { return row_stride_; }

  // The table in the form that kernels take. Valid as long as the table exists.
  const int32_t* data() const;
  BlockTableView view(int block_size, int num_blocks) const;

  // Returns all max_blocks() entries of a row. REQUIRES: 0 <= slot < num_slots().
  absl::Span<const BlockId> row(SlotId slot) const;
  absl::Span<BlockId> mutable_row(SlotId slot);

  // Applies updates in order, like the device. Ignores their group. Errors: InvalidArgument, naming
  // the first update that is out of range; then no update is applied.
  absl::Status Apply(absl::Span<const BlockTableUpdate> updates);

 private:
  explicit BlockTable(const BlockTableOptions& options);

  int num_slots_ = 0;
  int max_blocks_ = 0;
  int64_t row_stride_ = 0;
  std::vector<BlockId> entries_;
};

// Returns a view of the blocks as the integers that kernels read.
absl::Span<const int32_t> AsInts(absl::Span<const BlockId> blocks);

}  // namespace reprise

#endif  // REPRISE_CACHE_TABLES_BLOCK_TABLE_H_
