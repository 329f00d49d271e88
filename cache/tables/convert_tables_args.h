// Inputs and outputs of the block table conversions, and the conversion of one row, which host and
// device share. See cache/tables/convert_tables.h for the contract.

#ifndef REPRISE_CACHE_TABLES_CONVERT_TABLES_ARGS_H_
#define REPRISE_CACHE_TABLES_CONVERT_TABLES_ARGS_H_

#include <cstdint>

#include "reprise/base/host_device.h"
#include "reprise/base/row_fault.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {

// The keys of a row to convert. At the front, only whole blocks of the output are omitted, so
// distances between queries and keys do not change.
//
//   keys        a row of 3 queries over 21 keys, block_size 4: positions 18, 19, 20
//   kSeqLen     columns 0 to 5, 21 keys: all keys that the row's queries may attend to
//   kComputed   columns 0 to 4, 18 keys: the keys cached before the step; none in a pure prefill
//   kWindow     columns 3 to 5, 9 keys, with window_left 5: the first query attends from key 13
enum class TableKeys : int8_t { kSeqLen, kComputed, kWindow };

struct TableSelection {
  TableKeys keys = TableKeys::kSeqLen;
  int window_left = 0;  // kWindow only
};

// Outputs that are not needed are null. No output may overlap an input.
struct ConvertTablesOutputs {
  MutableBlockTableView table = {};  // [>= num_rows, max_blocks], at any block_size
  int32_t* seq_lens = nullptr;       // [num_rows] keys of each row
  MutablePackedBlockTable packed = {};
  int32_t* key_start_loc = nullptr;  // [num_rows + 1] prefix sums of the keys of each row
  int32_t* row_faults = nullptr;     // [num_rows] RowFault
  int32_t* num_faults = nullptr;     // [1] number of rows with a fault
};

// All pointers are host pointers, or all are device pointers.
struct ConvertTablesArgs {
  // Row r is keys [key_start[r], key_start[r] + seq_lens[r]) of row table_row[r] of `table`, ...
  BlockTableView table = {};
  const int32_t* table_row = nullptr;        // [num_rows]; absent: row r
  const int32_t* key_start = nullptr;        // [num_rows]; absent: 0
  const int32_t* seq_lens = nullptr;         // [num_rows]
  const int32_t* query_start_loc = nullptr;  // [num_rows + 1]; read unless all keys are selected
  TableSelection selection = {};
  // ... or row r of this table, if it is given; then the inputs above must be absent.
  PackedBlockTable packed = {};
  int num_rows = 0;

  ConvertTablesOutputs out = {};
};

// Block sizes of the input and the output tables.
constexpr int SourceBlockSize(const ConvertTablesArgs& args) {
  return args.packed.block_indptr ? args.packed.block_size : args.table.block_size;
}
constexpr int TargetBlockSize(const ConvertTablesArgs& args) {
  return args.out.table.entries ? args.out.table.block_size : SourceBlockSize(args);
}
constexpr bool WritesEntries(const ConvertTablesArgs& args) {
  return args.out.table.entries || args.out.packed.block_indptr;
}
constexpr bool ChangesBlockSize(const ConvertTablesArgs& args) {
  return TargetBlockSize(args) != SourceBlockSize(args);
}

// A row to convert: num_keys keys, starting at first_key, counted from its first entry.
struct SourceRow {
  const int32_t* entries;
  int32_t first_key;
  int32_t num_keys;  // 0: an empty row
  RowFault fault;
};

constexpr SourceRow EmptyRow(RowFault fault) { return {nullptr, 0, 0, fault}; }

constexpr SourceRow ReadPackedRow(const PackedBlockTable& packed, int r) {
  const int32_t begin = packed.block_indptr[r];
  const int32_t end = packed.block_indptr[r + 1];
  const int32_t last = packed.last_block_len[r];
  if (begin < 0 || (r == 0 && begin != 0) || end < begin || end > packed.max_indices) {
    return EmptyRow(RowFault::kLength);
  }
  const int32_t num_blocks = end - begin;
  if (num_blocks == 0) return EmptyRow(last == 0 ? RowFault::kNone : RowFault::kLength);
  const int64_t num_keys = static_cast<int64_t>(num_blocks - 1) * packed.block_size + last;
  if (last < 1 || last > packed.block_size || num_keys > INT32_MAX) {
    return EmptyRow(RowFault::kLength);
  }
  return {packed.block_indices + begin, 0, static_cast<int32_t>(num_keys), RowFault::kNone};
}

constexpr SourceRow ReadPaddedRow(const ConvertTablesArgs& args, int r) {
  const int32_t seq_len = args.seq_lens[r];
  if (seq_len == 0) return EmptyRow(RowFault::kNone);
  const int32_t start = args.key_start ? args.key_start[r] : 0;
  if (seq_len < 0 || start < 0) return EmptyRow(RowFault::kLength);
  int64_t first_key = start;
  int32_t num_keys = seq_len;
  if (args.selection.keys != TableKeys::kSeqLen) {
    const int64_t query_len =
        static_cast<int64_t>(args.query_start_loc[r + 1]) - args.query_start_loc[r];
    if (query_len < 0 || query_len > seq_len) return EmptyRow(RowFault::kLength);
    const auto num_computed = static_cast<int32_t>(seq_len - query_len);
    if (args.selection.keys == TableKeys::kComputed) {
      num_keys = num_computed;
    } else if (num_computed > args.selection.window_left) {
      const int32_t first_seen = num_computed - args.selection.window_left;
      const int32_t left_out = first_seen - first_seen % TargetBlockSize(args);
      first_key += left_out;
      num_keys -= left_out;
    }
  }
  if (num_keys == 0) return EmptyRow(RowFault::kNone);
  if (!WritesEntries(args)) return {nullptr, 0, num_keys, RowFault::kNone};
  const int64_t table_row = args.table_row ? args.table_row[r] : r;
  if (!HasTableRow(args.table, table_row)) return EmptyRow(RowFault::kTableRow);
  if (first_key + num_keys > TableCapacity(args.table)) return EmptyRow(RowFault::kLength);
  return {args.table.entries + table_row * args.table.row_stride, static_cast<int32_t>(first_key),
          num_keys, RowFault::kNone};
}

// Returns the row or its fault, based only on its lengths. Does not read entries.
constexpr SourceRow ReadRow(const ConvertTablesArgs& args, int r) {
  SourceRow row = args.packed.block_indptr ? ReadPackedRow(args.packed, r) : ReadPaddedRow(args, r);
  if (row.num_keys == 0) return row;
  if (args.out.table.entries &&
      NumBlocksFor(row.num_keys, args.out.table.block_size) > args.out.table.max_blocks) {
    return EmptyRow(RowFault::kNoRoom);
  }
  if (WritesEntries(args) && !ChangesBlockSize(args) &&
      row.first_key % SourceBlockSize(args) != 0) {
    return EmptyRow(RowFault::kNoRun);
  }
  return row;
}

// The space that the previous rows take in the packed outputs.
struct RowPlace {
  int64_t num_blocks;
  int64_t num_keys;
};

// Whether `row` fits in the packed outputs at `place`.
constexpr bool FitsAt(const ConvertTablesArgs& args, const RowPlace& place, const SourceRow& row) {
  const int32_t num_blocks = NumBlocksFor(row.num_keys, SourceBlockSize(args));
  return (!args.out.packed.block_indptr ||
          place.num_blocks + num_blocks <= args.out.packed.max_indices) &&
         (!args.out.key_start_loc || place.num_keys + row.num_keys <= INT32_MAX);
}

// Returns the reason why the source's tokens cannot form block `column` of the target, or kNone.
// REQUIRES: ChangesBlockSize(args).
constexpr RowFault ColumnFault(const ConvertTablesArgs& args, const SourceRow& row, int column) {
  const int source = SourceBlockSize(args);
  const int target = TargetBlockSize(args);
  const int32_t begin = column * target;
  const int32_t end = row.num_keys - begin < target ? row.num_keys : begin + target;
  int64_t first_slot = 0;
  for (int32_t key = begin; key < end;) {
    const int32_t token = row.first_key + key;
    const int32_t block = row.entries[token / source];
    if (block < 0 || block >= args.table.num_blocks) return RowFault::kNoBlock;
    const int64_t slot = static_cast<int64_t>(block) * source + token % source;
    if (key == begin) {
      first_slot = slot;
      if (slot % target != 0) return RowFault::kNoRun;
    }
    if (slot != first_slot + (key - begin)) return RowFault::kNoRun;
    // Advances to the end of the source's block, whose tokens are consecutive.
    const int32_t left = source - token % source;
    const int32_t step = left < end - key ? left : end - key;
    if ((slot + step - 1) / target > INT32_MAX) return RowFault::kNoBlock;
    key += step;
  }
  return RowFault::kNone;
}

// Returns block `column` of the target. REQUIRES: the row has no fault.
constexpr int32_t EntryOf(const SourceRow& row, int source, int target, int column) {
  if (source == target) return row.entries[row.first_key / source + column];
  const int32_t token = row.first_key + column * target;
  const int64_t slot = static_cast<int64_t>(row.entries[token / source]) * source + token % source;
  return static_cast<int32_t>(slot / target);
}

// Writes a row from ReadRow() that fits at `place`, or an empty row if it has a fault. Returns the
// fault from ReadRow() or a fault found in the entries.
template <typename Lanes>
REPRISE_HOST_DEVICE RowFault ConvertRow(const Lanes& lanes, const ConvertTablesArgs& args, int r,
                                        SourceRow row, const RowPlace& place) {
  const ConvertTablesOutputs& out = args.out;
  const int source = SourceBlockSize(args);
  const int target = TargetBlockSize(args);
  if (source != target) {
    const int num_columns = NumBlocksFor(row.num_keys, target);
    const auto is_faulty = [&](int c) { return ColumnFault(args, row, c) != RowFault::kNone; };
    const auto has_no_block = [&](int c) {
      return ColumnFault(args, row, c) == RowFault::kNoBlock;
    };
    if (lanes.Any(num_columns, is_faulty)) {
      row = EmptyRow(lanes.Any(num_columns, has_no_block) ? RowFault::kNoBlock : RowFault::kNoRun);
    }
  }
  const int num_blocks = NumBlocksFor(row.num_keys, target);
  int32_t* const padded =
      out.table.entries ? out.table.entries + r * out.table.row_stride : nullptr;
  int32_t* const packed =
      out.packed.block_indptr ? out.packed.block_indices + place.num_blocks : nullptr;
  if (padded || packed) {
    lanes.ForEach(num_blocks, [&](int column) {
      const int32_t entry = EntryOf(row, source, target, column);
      if (padded) padded[column] = entry;
      if (packed) packed[column] = entry;
    });
  }
  if (padded) {
    lanes.ForEach(out.table.max_blocks - num_blocks, [&](int i) { padded[num_blocks + i] = 0; });
  }
  lanes.ForEach(1, [&](int) {
    if (out.seq_lens) out.seq_lens[r] = row.num_keys;
    if (out.packed.block_indptr) {
      out.packed.block_indptr[r] = static_cast<int32_t>(place.num_blocks);
      out.packed.last_block_len[r] = num_blocks == 0 ? 0 : row.num_keys - (num_blocks - 1) * source;
    }
    if (out.key_start_loc) out.key_start_loc[r] = static_cast<int32_t>(place.num_keys);
    if (out.row_faults) out.row_faults[r] = static_cast<int32_t>(row.fault);
  });
  return row.fault;
}

// Completes the packed outputs after the last row.
constexpr void FinishTables(const ConvertTablesArgs& args, const RowPlace& total) {
  if (args.out.packed.block_indptr) {
    args.out.packed.block_indptr[args.num_rows] = static_cast<int32_t>(total.num_blocks);
  }
  if (args.out.key_start_loc) {
    args.out.key_start_loc[args.num_rows] = static_cast<int32_t>(total.num_keys);
  }
}

}  // namespace reprise

#endif  // REPRISE_CACHE_TABLES_CONVERT_TABLES_ARGS_H_
