#include "reprise/attention/metadata/local_block_table.h"

#include "absl/strings/str_cat.h"
#include "reprise/attention/metadata/builder_sizes.h"
#include "reprise/base/check.h"
#include "reprise/base/status_macros.h"

namespace reprise {

absl::Status CheckLocalBlockTable(const LocalBlockTableArgs& args) {
  const PagedBatch& local = args.local;
  const int block_size = args.table.block_size;
  if (block_size < 1 || args.chunk_size < 1 || args.chunk_size % block_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk_size: expected a multiple of block_size (", block_size, "), got ", args.chunk_size));
  }
  const int width = LocalTableWidth(args.chunk_size, block_size);
  if (args.table.max_blocks != width) {
    return absl::InvalidArgumentError(absl::StrCat("table.max_blocks: expected ", width,
                                                   " (chunk_size / block_size), got ",
                                                   args.table.max_blocks));
  }
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("local.num_rows", local.num_rows, 0));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("table.num_tables", args.table.num_tables, local.num_rows));
  REPRISE_RETURN_IF_ERROR(
      CheckRowStride("table.row_stride", args.table.row_stride, width, args.table.num_tables));
  if (local.num_rows == 0) return absl::OkStatus();
  return CheckGiven({{"local.seq_lens", local.seq_lens},
                     {"local.table_row", local.table_row},
                     {"local.key_start", local.key_start},
                     {"table.entries", args.table.entries},
                     {"seq_lens", args.seq_lens}});
}

PagedBatch LocalBlockTableBatch(const LocalBlockTableArgs& args) {
  PagedBatch classic = args.local;
  classic.seq_lens = args.seq_lens;
  classic.table_row = nullptr;
  classic.key_start = nullptr;
  classic.query_positions = nullptr;
  classic.block_table = args.table.entries;
  classic.max_blocks = args.table.max_blocks;
  classic.block_table_stride = args.table.row_stride;
  classic.num_tables = args.local.num_rows;
  return classic;
}

void LocalBlockTableOnHost(const LocalBlockTableArgs& args) {
  int32_t num_faults = 0;
  for (int v = 0; v < args.local.num_rows; ++v) {
    const RowFault fault = LocalTableFault(args, v);
    const int32_t seq_len = fault == RowFault::kNone ? args.local.seq_lens[v] : 0;
    num_faults += fault != RowFault::kNone;
    args.seq_lens[v] = seq_len;
    if (args.row_faults) args.row_faults[v] = static_cast<int32_t>(fault);
    int32_t* entries = args.table.entries + v * args.table.row_stride;
    for (int column = 0; column < args.table.max_blocks; ++column) {
      entries[column] = seq_len > 0 ? LocalTableEntry(args, v, column) : 0;
    }
  }
  if (args.num_faults) *args.num_faults = num_faults;
}

absl::StatusOr<PagedBatch> BuildLocalBlockTable(const LocalBlockTableArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckLocalBlockTable(args));
  const PagedBatch& local = args.local;
  FaultyRows faulty;
  for (int v = 0; v < local.num_rows; ++v) faulty.Add(v, LocalTableFault(args, v));
  REPRISE_RETURN_IF_ERROR(faulty.ToStatus([&](int v) {
    return absl::StrCat("expected a table_row of 0 to ", local.num_tables - 1,
                        ", a key_start that is a multiple of ", args.table.block_size,
                        " and keys up to ", TableCapacity(TableOf(local, args.table.block_size)),
                        ", got table_row ", local.table_row[v], ", key_start ", local.key_start[v],
                        ", seq_len ", local.seq_lens[v]);
  }));
  LocalBlockTableOnHost(args);
  return LocalBlockTableBatch(args);
}

}  // namespace reprise
